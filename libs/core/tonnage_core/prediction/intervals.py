"""How sure a prediction is: a 90 % interval as factors of the value, and its class."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with the interval that holds the truth nine times in ten; the unit stands in the field's name."""

    value: float
    lo90: float
    hi90: float

    def document(self) -> dict[str, float]:
        """As JSON."""
        return {"value": round(self.value, 4), "lo90": round(self.lo90, 4), "hi90": round(self.hi90, 4)}


def spread(value: float, factor: float) -> Estimate:
    """value / factor to value x factor: errors of a product of efficiencies are factors."""
    return Estimate(value, value / factor, value * factor)
