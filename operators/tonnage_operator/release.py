"""The finalizer: only while there are effects outside the cluster's objects, and never for ever.

It is set before the first such effect. On deletion it goes as soon as the effects are gone, or could not be undone
within the time that the resource gives: then they are named in the log, and the deletion does not hang. What cannot be
found any more (404) is gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tonnage_operator.actions import Action, Merge, Why
from tonnage_operator.kinds import FINALIZER, meta, name_of
from tonnage_operator.times import seconds
from tonnage_runtime.kube import Object, Resource


@dataclass(frozen=True, slots=True)
class Deletion:
    """How far a deletion is: whether it has begun, and for how long it has waited."""

    begun: bool
    waited_s: float = 0.0


def deletion(item: Object, now_s: float) -> Deletion:
    """From the object; a deletion whose time cannot be read has waited long enough."""
    text = meta(item).get("deletionTimestamp")
    if not text:
        return Deletion(False)
    since = seconds(str(text))
    return Deletion(True, float("inf") if since is None else now_s - since)


def held(item: Object) -> bool:
    """Whether our finalizer is there."""
    return FINALIZER in (meta(item).get("finalizers") or [])


def hold(item: Object, resource: Resource) -> list[Action]:
    """Set the finalizer."""
    if held(item):
        return []
    return [_finalizers(Why.HOLD, item, resource, [*(meta(item).get("finalizers") or []), FINALIZER])]


def let_go(item: Object, resource: Resource) -> list[Action]:
    """Take the finalizer away; those of others stay."""
    if not held(item):
        return []
    rest = [one for one in meta(item).get("finalizers") or [] if one != FINALIZER]
    return [_finalizers(Why.RELEASED, item, resource, rest)]


def _finalizers(why: Why, item: Object, resource: Resource, names: list[str]) -> Merge:
    """The list has no owner by item for a merge patch: it holds for the version that was read."""
    metadata: Mapping[str, Any] = {"resourceVersion": meta(item).get("resourceVersion"), "finalizers": names}
    return Merge(why, resource, name_of(item), {"metadata": metadata})
