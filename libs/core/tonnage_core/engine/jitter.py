"""Deterministic noise on step times: no generator state, so that running ahead gives the same numbers as stepping."""

_MASK = (1 << 64) - 1


def uniform(seed: int, index: int) -> float:
    """The `index`-th number in [0, 1) of the stream `seed` (SplitMix64; Steele, Lea, Flood 2014)."""
    mixed = (seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xD1342543DE82EF95) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)
