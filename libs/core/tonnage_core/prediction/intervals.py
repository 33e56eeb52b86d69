"""How sure a prediction is: its class, and a 90 % interval as factors of the value.

Half widths are natural logarithms, by what a user knows of a question before it is measured, from the errors that
`benchmarks/planner/fit.py` leaves on cards and on architectures it did not learn from: over all rows they hold nine in
ten on left-out cards and a little less on left-out architectures, where drawn lengths alone hold eight in ten. Equal
factors both ways, because errors of efficiencies multiply.
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


_DRAWN = {"vllm": (0.35, 0.39), "sglang": (0.31, 0.39), "trtllm": (0.38, 0.39), "nim": (0.38, 0.39)}
"""Lengths drawn from a range, a client of many waves: (TPOT, TTFT) by engine."""
_ALIKE = {"vllm": (1.08, 1.25), "sglang": (0.34, 1.15), "trtllm": (0.32, 1.10), "nim": (0.30, 1.10)}
"""All lengths alike: how long waves stay together, and whether prompts were served before, depends on the client, which
the rows do not describe."""
_UNKNOWN = (0.60, 1.00)
EAGER_TTFT, EAGER_BELOW = 0.65, 4096
"""TTFT of short prompts where prompts run eagerly: launches decide, and differ by model and host."""
FULL_TTFT = 1.45
"""Where requests queue for the KV pool: a small error of the pool is a large one of the queue."""
WIDER = 1.4
"""Factor of half widths on a card or engine that no row measures."""
CALIBRATED = (0.08, 0.22)
FULL_CALIBRATED = 0.30
"""TTFT of calibrated answers where requests queue."""
APART = (0.06, 0.10)
"""More for each e-fold between a question and the nearest calibration point."""


def widths(request: "PredictRequest", slots: "Slots") -> Widths:
    """Uncalibrated: derived where the rows measure the engine and the generation of card, extrapolated elsewhere."""
    table = _DRAWN if request.length_spread else _ALIKE
    tpot, ttft = table.get(request.engine, _UNKNOWN)
    known = engine_key(request.engine) in ENGINES and family(request.gpu) != "" and slots.fits is not False
    if request.length_spread and request.engine in PREFILL_FIRST and request.isl - request.prefix < EAGER_BELOW:
        ttft = EAGER_TTFT
    if request.concurrency > slots.running:
        ttft = FULL_TTFT
    wider = 1.0 if known else WIDER
    return Widths(tpot * wider, ttft * wider, "derived" if known else "extrapolated")


def calibrated_widths(request: "PredictRequest", slots: "Slots", calibration: "Calibration", apart: float) -> Widths:
    """Calibrated: narrow at the measured points, wider with the distance from the nearest."""
    few = 1.0 if len(calibration.points) > 2 else 1.3
    ttft = max(CALIBRATED[1], FULL_CALIBRATED) if request.concurrency > slots.running else CALIBRATED[1]
    return Widths(few * CALIBRATED[0] + APART[0] * apart, few * ttft + APART[1] * apart, "calibrated")
