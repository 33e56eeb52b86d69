"""A retry budget: retries stay a share of requests, so that a failing fleet is not buried under its own retries."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class RetryBudget:
    """Each request earns `ratio` of a retry; at most `cap` are saved, and `cap` are there at the start."""

    ratio: float = 0.2
    cap: float = 10.0
    _saved: float = -1.0

    def __post_init__(self) -> None:
        self._saved = self.cap

    def request(self) -> None:
        """A first attempt was made."""
        self._saved = min(self.cap, self._saved + self.ratio)

    def take(self) -> bool:
        """Spend one retry; False when none is left."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
