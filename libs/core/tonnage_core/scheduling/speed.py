"""Relative speed of GPUs from their measured ceilings."""

from collections.abc import Mapping

COMPUTE, MEMORY = "bf16_tflops", "hbm_copy_gbps"
LEAST = 0.001
"""No two GPUs that serve lie further apart: a smaller ratio is a wrong measurement, and unknown."""


def relative_speeds(ceilings: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Speed of each GPU relative to the best, `LEAST` to 1; a GPU without both ceilings is left out: unknown, not slow.

    `ceilings` are the `ceilings` of GpuProfile documents by any key. Prefill follows TFLOPS and decode follows GB/s;
    a request does both in turn, so the speed is the harmonic mean of the two ratios.
    """
    known = {key: c for key, c in ceilings.items() if c.get(COMPUTE, 0) > 0 and c.get(MEMORY, 0) > 0}
    if not known:
        return {}
    compute = max(c[COMPUTE] for c in known.values())
    memory = max(c[MEMORY] for c in known.values())
    raw = {key: 2 / (compute / c[COMPUTE] + memory / c[MEMORY]) for key, c in known.items()}
    best = max(raw.values())
    return {key: value / best for key, value in raw.items() if value / best >= LEAST}
