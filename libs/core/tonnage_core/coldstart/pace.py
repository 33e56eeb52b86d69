"""A cap on bytes a second: each read begins when those before it would be over at the capped rate."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Pace:
    """`bytes_per_s` is shared by whoever takes; `free_at_s` is when the next read may begin."""

    bytes_per_s: float
    free_at_s: float = 0.0


def taken(pace: Pace, size_bytes: int, now_s: float) -> tuple[Pace, float]:
    """The pace after a read of `size_bytes`, and the seconds it has to wait. Time that nobody used is not saved up."""
    begins = max(now_s, pace.free_at_s)
    return replace(pace, free_at_s=begins + size_bytes / pace.bytes_per_s), begins - now_s
