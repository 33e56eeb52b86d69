"""Faults on demand: what a fleet must survive, switched on over HTTP, each for a time or until cleared.

Kinds: `crash` (the process dies at once), `hang` (nothing but the admin API answers and the engine stands still),
`slow` (steps take `factor` times as long), `error` (inference requests are answered with `status`), `cut` (connections
break after `after_tokens` tokens of the answer), `metrics_error` (/metrics answers `status`), `metrics_stale`
(/metrics repeats what it said when the fault began).
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tonnage_runtime.clock import Clock

Kind = Literal["crash", "hang", "slow", "error", "cut", "metrics_error", "metrics_stale"]


class Fault(BaseModel):
    """One fault; `for_s` in wall seconds, None: until cleared."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    status: Annotated[int, Field(ge=400, le=599)] = 503
    factor: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 3.0
    after_tokens: Annotated[int, Field(ge=0, le=10**9)] = 3
    for_s: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = None


class Faults:
    """The faults in force, at most one of a kind; `changed` is called when one begins or ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._active: dict[Kind, tuple[Fault, float | None]] = {}
        self.cut_after: int | None = None
        """Tokens after which answers break off; kept at hand for the token path."""
        self.changed: Callable[[], None] = lambda: None

    def begin(self, fault: Fault) -> None:
        """Put a fault in force, in place of one of its kind."""
        ends_s = None if fault.for_s is None else self._clock.monotonic() + fault.for_s
        self._active[fault.kind] = (fault, ends_s)
        self._apply()

    def clear(self, kind: str | None = None) -> None:
        """End the fault of this kind, or all."""
        self._active = {} if kind is None else {k: v for k, v in self._active.items() if k != kind}
        self._apply()

    def expire(self) -> None:
        """End what has run out."""
        now = self._clock.monotonic()
        kept = {k: v for k, v in self._active.items() if v[1] is None or v[1] > now}
        if len(kept) < len(self._active):
            self._active = kept
            self._apply()

    def next_end_s(self) -> float | None:
        """Seconds until the next fault runs out; None when none will."""
        now = self._clock.monotonic()
        return min((ends_s - now for _, ends_s in self._active.values() if ends_s is not None), default=None)

    def get(self, kind: Kind) -> Fault | None:
        """The fault of this kind in force."""
        found = self._active.get(kind)
        return None if found is None else found[0]

    def listed(self) -> list[dict[str, Any]]:
        """Every fault in force, with the seconds it has left."""
        now = self._clock.monotonic()
        return [
            {**fault.model_dump(), "left_s": None if ends_s is None else max(0.0, ends_s - now)}
            for fault, ends_s in self._active.values()
        ]

    def _apply(self) -> None:
        cut = self.get("cut")
        self.cut_after = None if cut is None else cut.after_tokens
        self.changed()
