"""Refit the physical coefficients from a few measured points of one's own engine.

The prior is what the request would be answered with; each measured point moves the coefficients it speaks about as far
as its own noise allows. Nothing is looked up: an answer between or beyond the points comes from the same step model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, log

from tonnage_core.errors import BadInputError
from tonnage_core.prediction.closed_loop import SteadyState
from tonnage_core.prediction.coefficients import ADDED, BY_NAME, Coefficients
from tonnage_core.prediction.fit import Noise, Sample, applied, fit, state_of
from tonnage_core.prediction.intervals import Widths, calibrated_widths
from tonnage_core.prediction.predict import Prediction, predict
from tonnage_core.prediction.request import PredictRequest
from tonnage_core.prediction.slots import slots_of
from tonnage_core.prediction.truth import Point, sample_of

NOISE = Noise(0.04, 0.08, robust=False)
"""Repeats of one point differ by 0.1 % (TPOT) in the median, 9 % and 17 % (TPOT, TTFT) at the 90th percentile, which as
standard deviations are 5 and 10 %. Points trusted to 2 and 5 % bent the curve to what was noise in them."""
MOST_POINTS = 64
GROWTH = 0.07
"""Prior standard deviation of `growth`, which starts at 0. Without it two points with the ends right left half of the
public curves' other points 1 to 6 % too low, and those of an engine whose host is nearly all of a step (vLLM on a CPU
core) a tenth. At 0.15 the public curves' errors fall from 1.7 to 1.2 %, but two points of a CPU engine whose scheduler
and worker have a core of their own, whose steps grow with the rows, leave those between 12 % too high; 7 % at 0.07."""
_LOOSE = frozenset({"request_s", "burst", "burst_alike", "prompt_layer_s", "step_s", "wait_steps"})


UNFIT = {"tpot_ms": log(2), "ttft_ms": log(4)}
"""How far (natural log) the best fit may lie from one of its points; beyond, no engine can have shown all of them."""
POOR = {"tpot_ms": 0.2, "ttft_ms": 0.4}
"""The same for a fit that is used, with a word about it: more than repeats of a point differ by."""


class UnfitError(BadInputError):
    """Points that no engine has, or that no set of coefficients explains: of several engines, wrongly written, or
    measured amid other load."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """One measured figure and the natural log of the fit over it."""

    point: Point
    metric: str
    error: float

    def __str__(self) -> str:
        seen = getattr(self.point, self.metric)
        name = next((each for each in self.point.ids if each.endswith(self.metric)), "".join(self.point.ids[:1]))
        row = f" (row {name[:80]})" if name else ""
        where = f"{self.point.request.concurrency} requests in flight{row}"
        return f"{self.metric} is {seen:g} at {where}, and {exp(log(seen) + self.error):.4g} by the best fit"


@dataclass(frozen=True)
class Calibration:
    """Refitted coefficients and where they were measured. `left`: how far the fit stays from each figure of them."""

    coefficients: Coefficients
    points: tuple[Point, ...]
    left: tuple[Misfit, ...] = ()

    def widest(self, metric: str) -> float:
        """The largest distance from a point, natural log."""
        return max((abs(each.error) for each in self.left if each.metric == metric), default=0.0)


def spread(name: str) -> float:
    """Prior standard deviation of a log factor around the shipped coefficients; of `ADDED`, of the value."""
    if name in ADDED:
        return GROWTH
    return 0.8 if name in _LOOSE else 0.3


def calibrate(points: Sequence[Point]) -> Calibration:
    """Coefficients from points of one engine on one kind of card. Raises `BadInputError` when they cannot be used,
    `UnfitError` when the fit stays far from one of them."""
    used = [point for point in points if point.tpot_ms or point.ttft_ms]
    if not used:
        raise BadInputError("no point to calibrate with: give rows of ttft_ms or tpot_ms with isl, osl and concurrency")
    if len(used) > MOST_POINTS:
        raise BadInputError(f"{len(used)} points to calibrate with; give at most {MOST_POINTS}, the nearest ones")
    if len({(point.request.engine, point.request.gpu.name) for point in used}) > 1:
        raise BadInputError("calibration points of several engines or cards; give those of one")
    samples = [_sample(point) for point in used]
    factors = fit(samples, BY_NAME, spread, NOISE, rounds=8)
    found = applied(samples[0].model.coefficients, factors)
    left = [
        each for point, sample in zip(used, samples, strict=True) for each in _misfits(point, state_of(sample, found))
    ]
    worst = max(left, key=lambda each: abs(each.error) / UNFIT[each.metric])
    if abs(worst.error) > UNFIT[worst.metric]:
        raise UnfitError(
            f"the points do not fit: {worst}; measure that point again, look at the model, GPU and precision named, "
            "or leave out points of another engine"
        )
    return Calibration(found, tuple(used), tuple(left))


def _sample(point: Point) -> Sample:
    try:
        return sample_of(point, None)
    except BadInputError as error:
        row = "".join(f"row {name[:80]}: " for name in point.ids[:1])
        raise UnfitError(f"{row}{error}") from error


def _misfits(point: Point, fitted: SteadyState) -> Iterator[Misfit]:
    for metric, seconds in (("tpot_ms", fitted.tpot_s), ("ttft_ms", fitted.ttft_s)):
        if seen := getattr(point, metric):
            yield Misfit(point, metric, log(seconds * 1e3) - log(seen))


def chosen(points: Sequence[Point], count: int) -> list[Point]:
    """`count` points of a curve at distinct concurrencies: lowest and highest first, the rest evenly between.

    One point is the middle one. Fewer distinct concurrencies than `count`: none.
    """
    by_clients = {point.request.concurrency: point for point in points}
    levels = sorted(by_clients)
    if len(levels) < count or count < 1:
        return []
    last = len(levels) - 1
    picks = [last // 2 + last % 2] if count == 1 else [round(index * last / (count - 1)) for index in range(count)]
    return [by_clients[levels[index]] for index in picks]


def distance(point: Point, isl: float, osl: float, concurrency: float) -> float:
    """How far a question is from a measured point: the largest of the logarithms' differences."""
    request = point.request
    pairs = ((request.isl, isl), (request.osl, osl), (request.concurrency, concurrency))
    return max(abs(log(max(1.0, a) / max(1.0, b))) for a, b in pairs)


MEASURED = Widths(0.09, 0.16, "measured")
"""Repeats of a point: what nine in ten stay within."""


def predict_calibrated(request: PredictRequest, calibration: Calibration) -> Prediction:
    """The request with the refitted coefficients; the measured values themselves where they are its very question."""
    apart = min(distance(point, request.isl, request.osl, request.concurrency) for point in calibration.points)
    asked = replace(request, coefficients=calibration.coefficients)
    found = predict(asked, sure=calibrated_widths(asked, slots_of(asked), calibration, apart))
    poor = [each for each in calibration.left if abs(each.error) > POOR[each.metric]]
    if poor:
        worst = max(poor, key=lambda each: abs(each.error) / POOR[each.metric])
        found = replace(found, notes=(*found.notes, f"a poor calibration: {worst}"))
    for point in calibration.points:
        if replace(point.request, coefficients=None) == replace(request, coefficients=None):
            return _measured(found, point)
    return found


def _measured(found: Prediction, point: Point) -> Prediction:
    if point.ttft_ms is None or point.tpot_ms is None:
        return found
    life_s = (point.ttft_ms + (point.request.osl - 1) * point.tpot_ms) / 1e3
    rate = point.output_tok_s or point.request.concurrency * point.request.osl / life_s
    return replace(
        found,
        ttft_ms=MEASURED.estimate(point.ttft_ms, first=True),
        tpot_ms=MEASURED.estimate(point.tpot_ms),
        output_tok_s=MEASURED.estimate(rate),
        kind=MEASURED.kind,
    )
