"""What a reconcile asks to be done, as data. Each action says why in a word of a fixed set; each may be done twice."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tonnage_runtime.kube import Resource


class Why(StrEnum):
    """Why something is done; a label value, and stable."""

    MISSING = "missing"
    CHANGED = "changed"
    """What is wanted is not what was applied last."""
    DRIFTED = "drifted"
    """Someone else changed a field that is ours."""
    NOT_WANTED = "not_wanted"
    STATUS = "status"
    TARGET = "target"
    """The planner wants another number of replicas, or there is none yet."""
    PROMOTE = "promote"
    """A warm replica serves while cold ones start."""
    DEMOTE = "demote"
    """It is no longer needed and goes back to the warm pool."""
    RESTARTED = "restarted"
    """An engine came back without what it had."""
    PLACED = "placed"
    MOVED = "moved"
    DELETED = "deleted"
    HOLD = "hold"
    """The finalizer is set before there is an effect outside the cluster's objects."""
    RELEASED = "released"
    """Effects outside are gone, or the time for that is over."""
    VERDICT = "verdict"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of `body`."""

    why: Why
    resource: Resource
    name: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the object with `uid`; one that is not there is done."""

    why: Why
    resource: Resource
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Server-side apply of the status."""

    why: Why
    resource: Resource
    name: str
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SetScale:
    """Write `spec.replicas` through the scale subresource. It holds for `version` of the object: whoever wrote since is
    looked at before anything is written over."""

    why: Why
    resource: Resource
    name: str
    replicas: int
    version: str = ""


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge patch that holds for one version of the object; it has changed meanwhile: nothing is done, look again."""

    why: Why
    resource: Resource
    name: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A control call to an engine: load, unload, sleep or wake."""

    why: Why
    call: str
    url: str
    pod: str
    adapter: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class StageCall:
    """Stage `uri` on a node by its cold-start service."""

    why: Why
    url: str
    node: str
    uri: str
    pin: bool = False


@dataclass(frozen=True, slots=True)
class PinCall:
    """Pin or unpin a snapshot on a node."""

    why: Why
    url: str
    node: str
    key: str
    pinned: bool


Action = Apply | Delete | SetStatus | SetScale | Merge | EngineCall | StageCall | PinCall


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a reconcile found: actions in order, and seconds until it should look again without an event (None: the
    period of every object)."""

    actions: tuple[Action, ...]
    again_s: float | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Figures for the shell's metrics, by name."""
