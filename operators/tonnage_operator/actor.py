"""Does what a decision asks for, one action after the other; the first that fails ends it: all is looked at anew."""

import logging
from collections.abc import Callable
from typing import Protocol

from tonnage_core.errors import TonnageError
from tonnage_operator.actions import (
    Action,
    Apply,
    Delete,
    EngineCall,
    Merge,
    PinCall,
    SetScale,
    SetStatus,
    StageCall,
    Why,
)
from tonnage_operator.adapters.http import CallError
from tonnage_operator.kinds import DIGEST, FINALIZER, MANAGER, meta, owned_by
from tonnage_operator.metrics import OperatorMetrics
from tonnage_runtime.clock import Clock
from tonnage_runtime.kube import KubeClient, KubeError, KubeNotFoundError, Object

log = logging.getLogger("tonnage.operator")
DRIFT_S = 60.0
"""A field that changes back at once is someone else's will, or another spelling: it is set again this often at most."""


class EngineCalls(Protocol):
    """Control calls to engines."""

    def call(self, action: EngineCall) -> None:
        """Do it."""
        ...


class ColdstartCalls(Protocol):
    """Calls to cold-start services."""

    def stage(self, action: StageCall) -> None:
        """Ask for it."""
        ...

    def pin(self, action: PinCall) -> None:
        """Pin or unpin."""
        ...


class LostLeadError(TonnageError):
    """Another process acts now."""


class NameTakenError(TonnageError):
    """An object of that name is there and is not ours."""

    def __init__(self, message: str, found: Object) -> None:
        super().__init__(message)
        self.found = found


class Actor:
    """`leads` is asked before each action, so that a process that lost the lease stops in the middle."""

    def __init__(
        self,
        client: KubeClient,
        engines: EngineCalls,
        coldstart: ColdstartCalls,
        metrics: OperatorMetrics,
        clock: Clock,
        leads: Callable[[], bool],
    ) -> None:
        self._client, self._engines, self._coldstart = client, engines, coldstart
        self._metrics, self._clock, self._leads = metrics, clock, leads
        self._drifts: dict[tuple[str, str, str], float] = {}

    def act(self, action: Action) -> None:
        """Do one action; raises what went wrong, after it was counted."""
        if not self._leads():
            raise LostLeadError("this process no longer holds the lease")
        kind = type(action).__name__
        target = action.resource.kind if isinstance(action, Apply | Delete | SetStatus | SetScale | Merge) else "call"
        outcome = "ok"
        try:
            self._do(action)
        except (KubeError, CallError, NameTakenError) as error:
            outcome = error.outcome if isinstance(error, KubeError) else "refused"
            raise
        finally:
            self._metrics.actions.labels(kind, target, action.why.value, outcome).inc()

    def _do(self, action: Action) -> None:
        if isinstance(action, Apply):
            self._apply(action)
        elif isinstance(action, Delete):
            self._delete(action)
        elif isinstance(action, SetStatus):
            self._client.apply_status(action.resource, action.name, action.status, manager=MANAGER)
        elif isinstance(action, SetScale):
            held = {"metadata": {"resourceVersion": action.version}} if action.version else {}
            body = {**held, "spec": {"replicas": action.replicas}}
            self._client.merge(action.resource, action.name, body, manager=MANAGER, subresource="scale")
        elif isinstance(action, Merge):
            self._merge(action)
        elif isinstance(action, EngineCall):
            self._engines.call(action)
            log.info("engine", extra={"call": action.call, "pod": action.pod, "adapter": action.adapter})
        elif isinstance(action, StageCall):
            self._coldstart.stage(action)
        else:
            self._coldstart.pin(action)

    def _apply(self, action: Apply) -> None:
        key = (action.resource.path(), action.name, str(meta(action.body).get("annotations", {}).get(DIGEST)))
        now = self._clock.monotonic()
        if action.why is Why.DRIFTED:
            if now - self._drifts.get(key, float("-inf")) < DRIFT_S:
                return
            self._drifts[key] = now
        if action.why is Why.MISSING:
            self._not_a_strangers(action)
        self._client.apply(action.resource, action.name, action.body, manager=MANAGER)
        if action.why is not Why.MISSING:
            log.info("applied", extra={"object": action.resource.path(action.name), "why": action.why.value})

    def _not_a_strangers(self, action: Apply) -> None:
        """An apply would take over an object that is there; one whose label was taken away is still ours."""
        try:
            found = self._client.get(action.resource, action.name)
        except KubeNotFoundError:
            return
        owners = meta(action.body).get("ownerReferences") or [{}]
        if not owned_by(found, str(owners[0].get("uid"))):
            raise NameTakenError(f"{action.resource.kind} {action.name} is there and not ours", found)

    def _delete(self, action: Delete) -> None:
        try:
            self._client.delete(action.resource, action.name, uid=action.uid)
        except KubeNotFoundError:
            return
        log.info("deleted", extra={"object": action.resource.path(action.name), "why": action.why.value})

    def _merge(self, action: Merge) -> None:
        try:
            self._client.merge(action.resource, action.name, action.body, manager=MANAGER)
        except KubeNotFoundError:
            # Gone already: a finalizer, a label or a mark of what is no more.
            return
        if FINALIZER not in str(action.body):
            log.info("marked", extra={"object": action.resource.path(action.name), "why": action.why.value})
