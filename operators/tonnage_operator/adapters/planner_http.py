"""The planner's word on a pool: its target, and what a warm pool of it costs and saves."""

from typing import Any

from tonnage_operator.adapters.http import Caller, CallError
from tonnage_operator.model_server.target import Advice

STALE_S = 60.0
"""A decision older than this is not known any more."""


class HttpPlanner:
    """A planner; without a URL nothing is known."""

    def __init__(self, caller: Caller, url: str | None) -> None:
        self._caller, self._url = caller, url

    def advice(self, pool: str) -> Advice:
        """What it says now."""
        if self._url is None:
            return Advice(problem="no planner is configured: set TONNAGE_OPERATOR_PLANNER_URL")
        try:
            found = self._caller.json("GET", f"{self._url}/v1/explain/{pool}")
        except CallError as error:
            return Advice(problem=str(error))
        age = found.get("decided_age_s")
        if (known := _number(age)) is None or known > STALE_S:
            return Advice(problem=f"the planner's last decision is {age} s old")
        warm = found.get("warm")
        told: dict[str, Any] = warm if isinstance(warm, dict) else {}
        return Advice(
            target=_whole(found.get("desired_replicas")),
            warm=_whole(told.get("replicas")),
            idle_usd_per_hour=_number(told.get("idle_usd_per_hour")),
            saved_misses_per_hour=_number(told.get("saved_misses_per_hour")),
        )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _number(value: object) -> float | None:
    """A finite number of at least 0: JSON documents have been seen with NaN in them."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        return None
    return float(value)
