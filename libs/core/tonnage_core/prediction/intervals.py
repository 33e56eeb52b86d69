"""How sure a prediction is: its class, and a 90 % interval as factors of the value.

Half widths are natural logarithms, by what a user knows of a question before it is measured: quantiles (`LEVELS`) of
the errors that `benchmarks/planner/fit.py` leaves on cards and on architectures it did not learn from. Together they
hold nine in ten; clear questions alone hold eight in ten, open ones nearly all. Equal factors both ways, because errors
of efficiencies multiply.
"""

from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING

from tonnage_core.prediction.coefficients import ENGINES, PREFILL_FIRST, engine_key, family

if TYPE_CHECKING:
    from tonnage_core.prediction.calibrate import Calibration
    from tonnage_core.prediction.request import PredictRequest
    from tonnage_core.prediction.slots import Slots


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with the interval that holds the truth nine times in ten; the unit stands in the field's name."""

    value: float
    lo90: float
    hi90: float

    def document(self) -> dict[str, float]:
        """As JSON."""
        return {"value": round(self.value, 4), "lo90": round(self.lo90, 4), "hi90": round(self.hi90, 4)}


@dataclass(frozen=True, slots=True)
class Widths:
    """Half widths (natural log) of TPOT and TTFT, and the class of the answer."""

    tpot: float
    ttft: float
    kind: str

    def estimate(self, value: float, *, first: bool = False) -> Estimate:
        """The interval of a TTFT (`first`), else of a TPOT or a rate."""
        factor = exp(self.ttft if first else self.tpot)
        return Estimate(value, value / factor, value * factor)


LEVELS = {
    "tpot": {"drawn": 0.92, "alike": 0.97},
    "ttft": {"clear": 0.78, "eager": 0.95, "open": 0.95},
}
"""Share of the errors of each class that its half width holds."""
HALF = {
    "tpot": {"drawn": 0.345, "alike": 1.06},
    "ttft": {"clear": 0.35, "eager": 0.70, "open": 1.30},
}
EAGER_BELOW = 4096
"""Prompt tokens up to which launches decide how long an eager prompt takes; they differ by model and host."""
WIDER = 1.4
"""Factor of half widths on a card or engine that no row measures."""
CALIBRATED = (0.08, 0.22)
FULL_CALIBRATED = 0.30
"""TTFT of calibrated answers where requests queue."""
APART = (0.06, 0.10)
"""More for each e-fold between a question and the nearest calibration point."""


def classes(request: "PredictRequest", slots: "Slots") -> dict[str, str]:
    """What is known of a question. TPOT: lengths drawn from a range, or all alike: then waves stay together, and
    clients differ. TTFT is `open` there too, and where requests queue: a small error of the pool is a large one of the
    queue; `eager` for short prompts of engines that run them before decodes and without a graph; else `clear`."""
    length = "drawn" if request.length_spread else "alike"
    first = "clear"
    if request.concurrency > slots.running or not request.length_spread:
        first = "open"
    elif request.engine in PREFILL_FIRST and request.isl - request.prefix < EAGER_BELOW:
        first = "eager"
    return {"tpot": length, "ttft": first}


def widths(request: "PredictRequest", slots: "Slots") -> Widths:
    """Uncalibrated: derived where the rows measure the engine and the generation of card, extrapolated elsewhere."""
    found = classes(request, slots)
    known = engine_key(request.engine) in ENGINES and family(request.gpu) != "" and slots.fits is not False
    wider = 1.0 if known else WIDER
    tpot, ttft = (HALF[metric][found[metric]] * wider for metric in ("tpot", "ttft"))
    return Widths(tpot, ttft, "derived" if known else "extrapolated")


def calibrated_widths(request: "PredictRequest", slots: "Slots", calibration: "Calibration", apart: float) -> Widths:
    """Calibrated: as narrow as the fit meets its points, wider with the distance from the nearest."""
    few = 1.0 if len(calibration.points) > 2 else 1.3
    ttft = max(CALIBRATED[1], FULL_CALIBRATED) if request.concurrency > slots.running else CALIBRATED[1]
    tpot = max(few * CALIBRATED[0], calibration.widest("tpot_ms"))
    ttft = max(few * ttft, calibration.widest("ttft_ms"))
    return Widths(tpot + APART[0] * apart, ttft + APART[1] * apart, "calibrated")
