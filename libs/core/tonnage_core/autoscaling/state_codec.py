"""A pool's state as a document, so that a planner that starts again goes on where it was.

Times are kept as ages, since the clock that decisions use starts anew with the process; `elapsed_s` of wall time is
added when the state is read. What cannot be judged after a gap is left out: requests in flight, the pace of change.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tonnage_core.autoscaling.demand import DemandState, Mix
from tonnage_core.autoscaling.forecast import BUCKET_S, History
from tonnage_core.autoscaling.limits import Caps
from tonnage_core.autoscaling.outlook import OutlookState
from tonnage_core.autoscaling.state_machine import PoolState
from tonnage_core.errors import TonnageError

SCHEMA = "tonnage.pool_state/1"
LONGEST_GAP_S = 6 * 3600.0
"""After a longer stop the load of then says nothing of now: only the target is kept."""


class StateDocumentError(TonnageError):
    """The document is not a pool's state: it is set aside and the planner starts from what runs."""


def encode(state: PoolState, now_s: float) -> dict[str, Any]:
    """The state as JSON-ready values."""
    history, outlook = state.outlook.history, state.outlook
    return {
        "schema": SCHEMA,
        "target": state.target,
        "changed_age_s": _age(state.changed_at_s, now_s),
        "busy_age_s": _age(state.busy_at_s, now_s),
        "cap": {"most": state.caps.most, "left_s": max(0.0, state.caps.until_s - now_s)},
        "history": {
            "values": [round(value, 4) for value in history.values],
            "ratios": [round(ratio, 4) for ratio in history.ratios],
            "closed_age_s": _age(history.closed_at_s, now_s),
        },
        "mix": [getattr(outlook.demand.mix, name) for name in _MIX],
        "correction": outlook.demand.correction,
        "starts": dict(outlook.starts),
    }


_MIX = ("begun", "computed", "found", "ended", "generated")


def _age(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else now_s - at_s


def decode(document: Mapping[str, Any], now_s: float, elapsed_s: float) -> PoolState:
    """The state `elapsed_s` of wall time after it was written; raises `StateDocumentError`.

    A negative `elapsed_s` (the wall clock was set back) counts as none.
    """
    elapsed = max(0.0, elapsed_s)
    if document.get("schema") != SCHEMA:
        raise StateDocumentError(f"pool state: schema is {document.get('schema')!r}, not {SCHEMA}")
    try:
        target = document["target"]
        if target is not None and (not isinstance(target, int) or target < 0):
            raise ValueError(f"target {target!r}")
        if len(document["mix"]) != len(_MIX):
            raise ValueError(f"mix of {len(document['mix'])} numbers")
        if elapsed > LONGEST_GAP_S:
            return PoolState(target=target, changed_at_s=now_s)
        return _state(document, target, now_s - elapsed, now_s)
    except (KeyError, TypeError, ValueError) as error:
        raise StateDocumentError(f"pool state: {type(error).__name__} {error}: it is set aside") from error


def _state(document: Mapping[str, Any], target: int | None, then_s: float, now_s: float) -> PoolState:
    cap = document["cap"]
    caps = Caps(cap["most"], then_s + float(cap["left_s"])) if cap["most"] is not None else Caps()
    # What fitted before the stop is no evidence for after it: a whole window is seen before anything is given up.
    window = ((now_s, target),) if target is not None else ()
    outlook = OutlookState(
        demand=DemandState(mix=Mix(*map(float, document["mix"])), correction=float(document["correction"])),
        history=_history(document["history"], then_s, now_s),
        starts={str(url): float(took) for url, took in document["starts"].items()},
    )
    return PoolState(
        target=target,
        changed_at_s=_at(document["changed_age_s"], then_s),
        window=window,
        busy_at_s=_at(document["busy_age_s"], then_s),
        outlook=outlook,
        caps=caps,
    )


def _history(found: Mapping[str, Any], then_s: float, now_s: float) -> History:
    """The history with the stop bridged by its last value, so that seasons keep their place."""
    values = tuple(float(value) for value in found["values"])
    closed = _at(found["closed_age_s"], then_s)
    history = History(values, closed, ratios=tuple(float(ratio) for ratio in found["ratios"]))
    if closed is None or not values:
        return history
    missed = int((now_s - closed) // BUCKET_S)
    return replace(history, values=(*values, *([values[-1]] * missed)), closed_at_s=closed + missed * BUCKET_S)


def _at(age_s: Any, then_s: float) -> float | None:
    return None if age_s is None else then_s - float(age_s)
