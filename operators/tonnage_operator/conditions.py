"""Status conditions: set by type, with the time of the last change kept (Kubernetes API conventions)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
MESSAGE_MOST = 1000


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. `reason` is a stable CamelCase word; `message` says what to do."""

    type: str
    status: str
    reason: str
    message: str = ""


def yes(kind: str, reason: str, message: str = "") -> Condition:
    """A condition that holds."""
    return Condition(kind, TRUE, reason, message)


def no(kind: str, reason: str, message: str = "") -> Condition:
    """A condition that does not hold."""
    return Condition(kind, FALSE, reason, message)


def merged(before: Iterable[Mapping[str, Any]], now_set: Iterable[Condition], now: str, generation: int) -> list[Any]:
    """The conditions of a status: `lastTransitionTime` moves only with the status. `now` is RFC 3339."""
    known = {str(one.get("type")): one for one in before}
    made = []
    for one in sorted(now_set, key=lambda condition: condition.type):
        old = known.get(one.type)
        since = old.get("lastTransitionTime") if old is not None and old.get("status") == one.status else None
        made.append(
            {
                "type": one.type,
                "status": one.status,
                "reason": one.reason,
                "message": one.message[:MESSAGE_MOST],
                "lastTransitionTime": since or now,
                "observedGeneration": generation,
            }
        )
    return made
