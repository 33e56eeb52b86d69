"""Starts that cold-start services were told of (`tonnage timeline --report`): lead times from the pod's creation on."""

import json
import math
from collections.abc import Mapping

PATH = "/v1/starts"
EVERY_S = 30.0
"""Between two calls, in the planner's seconds."""
LONGEST_S = 86_400.0


def starts_of(text: str) -> Mapping[str, Mapping[str, float]]:
    """Seconds of each start by pool and name; what is not whole is left out. Raises ValueError for another document."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("schema") != "tonnage.starts/1":
        raise ValueError("not a list of starts (tonnage.starts/1)")
    listed = document.get("starts")
    found: dict[str, dict[str, float]] = {}
    for one in listed if isinstance(listed, list) else ():
        if not isinstance(one, dict):
            continue
        pool, name, took = one.get("pool"), one.get("name"), _seconds(one.get("total_s"))
        if took is not None and isinstance(pool, str) and pool and isinstance(name, str):
            found.setdefault(pool, {})[f"start:{name}@{_first(one.get('spans'))}"] = took
    return found


def _seconds(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value) if 0 < value <= LONGEST_S else None


def _first(spans: object) -> str:
    """The first instant: the same pod name may start more than once."""
    listed = spans if isinstance(spans, list) else []
    begun = [one.get("start_s") for one in listed if isinstance(one, dict)]
    return f"{min((at for at in begun if isinstance(at, int | float)), default=0):.0f}"
