"""How sure a number is: its class and its 90 % interval.

Half widths come from what the published boots leave unexplained (90th percentile of the error by metric): sizes that
are printed to 0.01 GiB carry that rounding, the pool carries the absolute error of everything that is not pool.
"""

from dataclasses import dataclass

from tonnage_core.memory.plan import MemoryPlan
from tonnage_core.units import GIB

EXACT = frozenset({"kv_bytes_per_token", "kv_gib_per_sequence", "attn_block_size_tokens"})
PRINTED_GIB = 0.005
"""Half a unit of the last printed digit of a GiB figure."""
POOL_GIB = 0.25
_SIZES: dict[str, tuple[float, float]] = {
    "weight_gib": (0.03, 0.006),
    "activation_peak_gib": (0.04, 0.02),
    "non_torch_gib": (0.03, 0.05),
    "non_kv_total_gib": (0.10, 0.006),
    "cuda_graph_gib": (0.05, 0.22),
}
"""(GiB, share of the value) added up."""
FITTED_FROM = ((0, 10), (0, 20))
"""vLLM releases whose overheads published boots measure; others are extrapolated, four times as wide."""


@dataclass(frozen=True, slots=True)
class Interval:
    """`low` to `high` holds the truth nine times in ten. `kind`: measured, calibrated, derived or extrapolated."""

    low: float
    high: float
    kind: str


def provenance(plan: MemoryPlan | None) -> str:
    """derived inside the releases that published boots cover, else extrapolated."""
    if plan is None or plan.request.pool_gib is not None:
        return "derived"
    parts = plan.facts.version.split(".")
    if plan.facts.engine != "vllm" or len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return "extrapolated"
    low, high = FITTED_FROM
    return "derived" if low <= (int(parts[0]), int(parts[1])) <= high else "extrapolated"


def interval(metric: str, value: float, plan: MemoryPlan | None) -> Interval:
    """The 90 % interval of one metric's value."""
    kind = provenance(plan)
    if metric in EXACT or plan is None:
        return Interval(value, value, "derived")
    half = _half_width(metric, value, plan) * (4 if kind == "extrapolated" else 1)
    return Interval(value - half, value + half, kind)


def _half_width(metric: str, value: float, plan: MemoryPlan) -> float:
    if metric in _SIZES:
        fixed, share = _SIZES[metric]
        return fixed + share * abs(value)
    pool = max(0.01, abs(plan.stages[0].pool or 0.0) / GIB)
    loose = PRINTED_GIB + 0.0005 * pool if plan.request.pool_gib is not None else POOL_GIB
    if metric == "kv_cache_gib":
        return loose
    return abs(value) * min(1.0, loose / pool) + (0.005 if metric == "max_concurrency_x" else 0.0)
