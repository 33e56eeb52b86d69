"""The derivation: named steps with a formula in numbers and its value, so that a reader can redo each by hand."""

from dataclasses import dataclass, field
from typing import Any

from tonnage_core.units import GIB


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a derivation."""

    name: str
    formula: str
    value: float
    unit: str

    def document(self) -> dict[str, Any]:
        """The step as JSON."""
        return {"name": self.name, "formula": self.formula, "value": self.value, "unit": self.unit}


@dataclass
class Derivation:
    """Steps in order."""

    steps: list[Step] = field(default_factory=list)

    def gib(self, name: str, formula: str, size_bytes: float) -> float:
        """Record bytes as GiB; returns the bytes."""
        self.steps.append(Step(name, formula, round(size_bytes / GIB, 4), "GiB"))
        return size_bytes

    def count(self, name: str, formula: str, value: float, unit: str) -> float:
        """Record a plain number."""
        self.steps.append(Step(name, formula, value, unit))
        return value
