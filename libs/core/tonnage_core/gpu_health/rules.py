"""Verdict rules as data: floors against the data sheet, the GPU's own history, its fleet, telemetry, correctness."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tonnage_core.gpu_health.measurement import Measurement, PointStatus
from tonnage_core.gpu_health.profile import ceilings, median
from tonnage_core.gpu_health.verdict import Finding, Status
from tonnage_core.gpu_health.xid import XidClass, XidPolicy

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation of a normal distribution to its standard deviation."""


@dataclass(frozen=True, slots=True)
class SpecFloor:
    """A ceiling below `warn` or `fail` times the data sheet's figure. Data-sheet rates are never reached: a healthy
    H200 copies at 0.88 and multiplies bf16 at 0.78 of them."""

    ceiling: str
    spec: str
    warn: float
    fail: float


SPEC_FLOORS = (
    SpecFloor("hbm_copy_gbps", "hbm_gbps", 0.80, 0.65),
    SpecFloor("hbm_read_gbps", "hbm_gbps", 0.80, 0.65),
    SpecFloor("bf16_tflops", "bf16_tflops", 0.60, 0.45),
    SpecFloor("fp8_tflops", "fp8_tflops", 0.50, 0.35),
    SpecFloor("h2d_pinned_gbps", "pcie_gbps", 0.70, 0.45),
    SpecFloor("d2h_pinned_gbps", "pcie_gbps", 0.70, 0.45),
)


@dataclass(frozen=True, slots=True)
class BaselineRule:
    """A ceiling against a baseline of earlier values: `warn`/`fail` are shares below the median.

    A drop also has to exceed `sigmas` robust standard deviations (1.4826 MAD), so a noisy figure needs more. Below
    `minimum` values there is no baseline and the rule says nothing.
    """

    name: str
    warn: float = 0.05
    fail: float = 0.10
    sigmas: float = 4.0
    minimum: int = 5


HISTORY = BaselineRule("own_history")
FLEET = BaselineRule("fleet_median", warn=0.08, fail=0.15, minimum=4)

LOWER_IS_BETTER = frozenset({"kernel_launch_us", "graph_kernel_us", "pin_s_per_gib"})
DEFAULT_XIDS = XidPolicy()
HOST_BOUND = frozenset(
    {"kernel_launch_us", "pin_s_per_gib", "h2d_pageable_gbps", "d2h_pageable_gbps", "disk_to_host_gbps"}
    | {"page_cache_to_host_gbps"}
)
"""Figures that the host decides: recorded, never evidence against the GPU."""


def spec_shares(ceilings: Mapping[str, float], spec: Mapping[str, float | None]) -> dict[str, float]:
    """Measured over the data sheet's figure, by ceiling, where both are known."""
    pairs = ((rule.ceiling, ceilings.get(rule.ceiling), spec.get(rule.spec)) for rule in SPEC_FLOORS)
    return {name: value / sheet for name, value, sheet in pairs if value is not None and sheet}


def spec_findings(ceilings: Mapping[str, float], spec: Mapping[str, float | None]) -> list[Finding]:
    """One finding a floor that can be judged: the ceiling was measured and the data sheet gives the figure."""
    found = []
    for rule in SPEC_FLOORS:
        value, sheet = ceilings.get(rule.ceiling), spec.get(rule.spec)
        if value is None or not sheet:
            continue
        share = value / sheet
        status = Status.FAIL if share < rule.fail else Status.WARN if share < rule.warn else Status.OK
        found.append(Finding(f"spec_floor:{rule.ceiling}", status, f"{share:.2f} of the data sheet's {sheet:g}"))
    return found


def baseline_findings(
    ceilings: Mapping[str, float], earlier: Mapping[str, Sequence[float]], rule: BaselineRule
) -> list[Finding]:
    """One finding a ceiling with a baseline in `earlier` (values of the same ceiling, oldest first)."""
    found = []
    for key, value in sorted(ceilings.items()):
        past = earlier.get(key, ())
        if key in HOST_BOUND or len(past) < rule.minimum:
            continue
        middle = median(past)
        sigma = MAD_TO_SIGMA * median([abs(v - middle) for v in past])
        drop = (value - middle if key in LOWER_IS_BETTER else middle - value) / middle
        real = drop * middle > rule.sigmas * sigma
        status = Status.OK if not real or drop < rule.warn else Status.FAIL if drop >= rule.fail else Status.WARN
        found.append(Finding(f"{rule.name}:{key}", status, f"{value:g} against a median of {middle:g}"))
    return found


def no_baseline(ceilings: Mapping[str, float], kept: Mapping[str, Sequence[float]] | None) -> Finding:
    """Why a run that no rule could compare is UNKNOWN. `kept` is the GPU's history before it, None where none is kept.

    Such a run is provisional: it begins the history that judges later ones.
    """
    judged = [key for key in ceilings if key not in HOST_BOUND]
    if not judged:
        return Finding("no_baseline", Status.UNKNOWN, "no figure of the GPU's own was measured")
    if kept is None:
        text = "no figure of a data sheet to compare with, and a single run has no history"
        return Finding("no_baseline", Status.UNKNOWN, text)
    earlier = max(len(kept.get(key, ())) for key in judged)
    text = "no figure of a data sheet or of other GPUs to compare with, and "
    text += f"{earlier} of the {HISTORY.minimum} earlier runs that its own history needs"
    return Finding("no_baseline", Status.UNKNOWN, text)


def correctness_findings(points: Iterable[Measurement]) -> list[Finding]:
    """A wrong result is FAIL at any speed; a probe that could not run is UNKNOWN, unsupported says nothing."""
    found = []
    for point in points:
        if point.status is PointStatus.WRONG:
            found.append(Finding(f"wrong_result:{point.name}", Status.FAIL, point.detail, immediate=True))
        elif point.status in (PointStatus.BUSY, PointStatus.ERROR):
            found.append(Finding(f"not_measured:{point.name}", Status.UNKNOWN, point.detail or point.status.value))
    return found


def right_figures(points: Sequence[Measurement]) -> set[str]:
    """The probes and ceilings of a run that were measured with right results throughout."""
    wrong = {point.name for point in points if point.status is PointStatus.WRONG}
    good = [point for point in points if point.status is PointStatus.OK and point.name not in wrong]
    return {point.name for point in good} | set(ceilings(good))


@dataclass(frozen=True, slots=True)
class HealthReadings:
    """Passive readings that carry evidence; None when the driver does not say."""

    uncorrectable_ecc: float | None = None
    remap_failure: bool | None = None
    remap_pending: bool | None = None
    hardware_throttle: tuple[str, ...] = ()
    xids: tuple[int, ...] = ()


def telemetry_findings(readings: HealthReadings, xids: XidPolicy = DEFAULT_XIDS) -> list[Finding]:
    """Findings from telemetry. XIDs of the application class never count; clean telemetry yields no finding."""
    found = []
    if readings.remap_failure:
        found.append(Finding("row_remap_failure", Status.FAIL, "a row remap failed: replace the GPU", immediate=True))
    if readings.remap_pending:
        found.append(Finding("row_remap_pending", Status.WARN, "a row remap waits for a GPU reset"))
    if readings.uncorrectable_ecc:
        text = f"{readings.uncorrectable_ecc:g} uncorrectable errors since the driver loaded"
        found.append(Finding("ecc_uncorrectable", Status.WARN, text))
    if readings.hardware_throttle:
        found.append(Finding("hardware_throttle", Status.WARN, ", ".join(sorted(readings.hardware_throttle))))
    for code in sorted(set(readings.xids)):
        kind = xids.classify(code)
        if kind is XidClass.HARDWARE:
            found.append(Finding(f"xid:{code}", Status.FAIL, "an XID of the hardware class", immediate=True))
        elif kind is XidClass.SUSPECT:
            found.append(Finding(f"xid:{code}", Status.WARN, "an XID that hardware or driver can cause"))
    return found
