"""The loop: events become keys, keys become decisions, decisions become actions.

Level-triggered: every look starts from what is there, so that a process may end between any two actions.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tonnage_core.autoscaling.writers import Writer
from tonnage_core.errors import TonnageError
from tonnage_operator import kinds
from tonnage_operator.actions import Action, Apply, EngineCall, Merge, Outcome, PinCall, StageCall, Why
from tonnage_operator.actor import Actor, LostLeadError, NameTakenError
from tonnage_operator.adapters.http import CallError
from tonnage_operator.cluster import COLDSTART, Cluster
from tonnage_operator.gather import Gather
from tonnage_operator.gpu_profile import reconcile as gpu
from tonnage_operator.gpu_profile.marks import CONDITION
from tonnage_operator.lora_adapter import reconcile as lora
from tonnage_operator.metrics import OperatorMetrics
from tonnage_operator.model_cache import reconcile as cache
from tonnage_operator.model_server import reconcile as server
from tonnage_operator.queue import Key, WorkQueue
from tonnage_operator.release import deletion
from tonnage_runtime.clock import Clock
from tonnage_runtime.kube import (
    KubeClient,
    KubeConflictError,
    KubeError,
    KubeForbiddenError,
    KubeNotFoundError,
    KubeRejectedError,
    Object,
)

log = logging.getLogger("tonnage.operator")
FLEET: Key = (kinds.NODES.plural, "", "")
LEAST_S, MOST_S = 1.0, 300.0
WORKED_ON = (kinds.MODEL_SERVERS, kinds.LORA_ADAPTERS, kinds.MODEL_CACHES)
FLEET_S = 2.0
"""Node and profile events come in crowds: the fleet is looked at this long after the first."""


@dataclass(frozen=True)
class Parts:
    """What the loop works with."""

    client: KubeClient
    cluster: Cluster
    gather: Gather
    actor: Actor
    metrics: OperatorMetrics
    clock: Clock
    leads: Callable[[], bool]
    resync_s: float
    workers: int


class Controller:
    """Keys are worked on by threads while this process leads; others only keep their copy of the cluster."""

    def __init__(self, parts: Parts, queue: WorkQueue) -> None:
        self._parts, self._queue = parts, queue
        self._conflicts: dict[Key, list[str]] = {}
        self._nodes: dict[str, Mapping[str, Any]] = {}
        self._stop = threading.Event()
        names = [f"work-{number}" for number in range(parts.workers)]
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        self._threads.append(threading.Thread(target=self._resync, name="resync", daemon=True))
        self.synced = threading.Event()
        """Set once every custom resource that is there has been told of."""

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self, wait_s: float) -> None:
        """Take nothing new, and let what is in hand end, for at most `wait_s` a thread."""
        self._stop.set()
        self._queue.close()
        for thread in self._threads:
            thread.join(wait_s)

    # --- events -------------------------------------------------------------------------------------------------------

    def custom(self, plural: str, item: Object) -> None:
        """A custom resource appeared, changed or went."""
        if plural == kinds.GPU_PROFILES.plural:
            self._queue.add(FLEET, FLEET_S)
            return
        self._queue.add((plural, kinds.namespace_of(item), kinds.name_of(item)))
        if plural == kinds.MODEL_SERVERS.plural:
            self._adapters_of(kinds.namespace_of(item), kinds.name_of(item))

    def changed(self, watch: str, item: Object) -> None:
        """Another object appeared, changed or went: look at what it belongs to."""
        namespace, labels = kinds.namespace_of(item), kinds.labels_of(item)
        if watch == kinds.NODES.plural:
            if (said := noteworthy(item)) == self._nodes.get(kinds.name_of(item)):
                return
            self._nodes[kinds.name_of(item)] = said
            self._queue.add(FLEET, FLEET_S)
        if watch in (kinds.NODES.plural, COLDSTART):
            for one in self._parts.cluster.customs.all(kinds.MODEL_CACHES.plural):
                self._queue.add((kinds.MODEL_CACHES.plural, kinds.namespace_of(one), kinds.name_of(one)), FLEET_S)
            return
        if (name := labels.get(kinds.SERVER_LABEL)) is not None:
            self._queue.add((kinds.MODEL_SERVERS.plural, namespace, str(name)))
            if watch == kinds.PODS.plural:
                self._adapters_of(namespace, str(name))
        if (name := labels.get(kinds.CACHE_LABEL)) is not None:
            self._queue.add((kinds.MODEL_CACHES.plural, namespace, str(name)))
        target = ((item.get("spec") or {}).get("scaleTargetRef") or {}).get("name")
        if isinstance(target, str):
            self._queue.add((kinds.MODEL_SERVERS.plural, namespace, target))

    def _adapters_of(self, namespace: str, name: str) -> None:
        for one in self._parts.cluster.customs.all(kinds.LORA_ADAPTERS.plural):
            if kinds.namespace_of(one) == namespace and (one.get("spec") or {}).get("model") == name:
                self._queue.add((kinds.LORA_ADAPTERS.plural, namespace, kinds.name_of(one)))

    # --- work ---------------------------------------------------------------------------------------------------------

    def _resync(self) -> None:
        while not self._stop.is_set():
            if not self._counted():
                self._stop.wait(0.2)
                continue
            for resource in WORKED_ON:
                for one in self._parts.cluster.customs.all(resource.plural):
                    self._queue.add((resource.plural, kinds.namespace_of(one), kinds.name_of(one)))
            self._queue.add(FLEET)
            self._parts.gather.strangers.clear()
            self._stop.wait(self._parts.resync_s)

    def _counted(self) -> bool:
        """Whether every custom resource that is there is known; afterwards those that went unnoticed are dropped."""
        try:
            unknown = self._parts.cluster.customs.census(self._parts.client, WORKED_ON)
        except KubeError as error:
            log.warning("resources not counted", extra={"reason": str(error)})
            self._stop.wait(LEAST_S)
            return False
        if not unknown:
            self.synced.set()
        return self.synced.is_set()

    def _work(self) -> None:
        while not self._stop.is_set():
            self._parts.metrics.leading.set(float(self._parts.leads()))
            if not self._parts.leads() or not self.synced.is_set() or self._parts.cluster.missing() is not None:
                self._stop.wait(0.05)
                continue
            key = self._queue.take(1.0)
            self._parts.metrics.queue.set(len(self._queue))
            if key is not None:
                try:
                    self.look(key)
                finally:
                    self._queue.done(key)

    def look(self, key: Key) -> None:
        """One decision with its actions; what goes wrong is counted, logged and tried again later."""
        began, outcome = self._parts.clock.monotonic(), "ok"
        try:
            found = self._decide(key)
            self._note(key, found)
            self._done(key, found.actions)
            self._queue.succeeded(key)
            if found.again_s is not None:
                self._queue.add(key, found.again_s)
        except LostLeadError:
            outcome = "lost_lead"
            self._queue.add(key, LEAST_S)
        except NameTakenError as error:
            outcome = "name_taken"
            self._remember(error.found)
            self._queue.add(key)
        except KubeConflictError:
            outcome = "conflict"
            self._queue.failed(key, 0.1, 10.0)
        except TonnageError as error:
            wish = error.retry_after_s if isinstance(error, KubeError) else None
            outcome = error.outcome if isinstance(error, KubeError) else "failed"
            pause = self._queue.failed(key, LEAST_S, MOST_S, wish or 0.0)
            log.warning("not done", extra={"key": "/".join(key), "reason": str(error), "again_s": round(pause, 1)})
        except Exception:
            outcome = "crashed"
            self._queue.failed(key, LEAST_S, MOST_S)
            log.exception("look crashed", extra={"key": "/".join(key)})
        self._parts.metrics.reconciles.labels(key[0], outcome).inc()
        self._parts.metrics.reconcile_seconds.labels(key[0]).observe(self._parts.clock.monotonic() - began)

    def _decide(self, key: Key) -> Outcome:
        plural, namespace, name = key
        now_s = self._parts.clock.wall()
        if key == FLEET:
            return gpu.reconcile(self._parts.gather.fleet(now_s))
        item = self._parts.cluster.customs.get(plural, namespace, name)
        if item is None:
            self._forget(key)
            return Outcome(())
        if plural == kinds.MODEL_SERVERS.plural:
            return server.reconcile(self._parts.gather.model_server(item, now_s))
        if plural == kinds.LORA_ADAPTERS.plural:
            return self._told(item, now_s, lora.reconcile(self._parts.gather.lora_adapter(item, now_s)))
        return self._told(item, now_s, cache.reconcile(self._parts.gather.model_cache(item, now_s)))

    def _told(self, item: Object, now_s: float, found: Outcome) -> Outcome:
        """Say it when a deletion ends by its time."""
        released = any(isinstance(one, Merge) and one.why is Why.RELEASED for one in found.actions)
        ending = deletion(item, now_s)
        limit = (item.get("spec") or {}).get("releaseTimeoutSeconds")
        if released and ending.waited_s >= (limit if isinstance(limit, int) else 600):
            self._parts.metrics.given_up.labels(str(item.get("kind") or "")).inc()
            log.warning("released without being undone", extra={"object": kinds.key_of(item)})
        return found

    def _done(self, key: Key, actions: Sequence[Action]) -> None:
        """The actions in order. One that is refused for itself keeps no other waiting: one node's service is full, one
        kind is not installed. It is remembered for the status, and raised at the end."""
        first: TonnageError | None = None
        before = self._parts.gather.refusals.pop(key, {})
        for action in actions:
            try:
                self._step(key, action)
            except (KubeRejectedError, KubeForbiddenError, KubeNotFoundError, CallError) as error:
                if not isinstance(action, Apply | EngineCall | StageCall | PinCall):
                    raise
                first = first or error
                self._parts.gather.refusals.setdefault(key, {})[subject(action)] = str(error)[:300]
        if before and not self._parts.gather.refusals.get(key):
            self._queue.add(key)
        if first is not None:
            raise first

    def _step(self, key: Key, action: Any) -> None:
        """One action. A load that fails is remembered with its pod, and does not keep other pods waiting."""
        if not isinstance(action, EngineCall) or action.call != "load":
            self._parts.actor.act(action)
            return
        uid = self._uid(key[1], action.pod)
        slot = (key[1], key[2], uid)
        tries = self._parts.gather.tries
        try:
            self._parts.actor.act(action)
            tries.pop(slot, None)
        except CallError as error:
            tries[slot] = lora.failed(tries.get(slot, lora.Try()), str(error), self._parts.clock.wall())
            log.warning("adapter not loaded", extra={"pod": action.pod, "adapter": key[2], "reason": str(error)})

    def _uid(self, namespace: str, pod: str) -> str:
        found = self._parts.cluster.objects(kinds.PODS.plural).get(f"{namespace}/{pod}") or {}
        return str(kinds.meta(found).get("uid") or "")

    def _remember(self, found: Object) -> None:
        kind = next((one for one in (*kinds.CHILDREN, *kinds.SCALERS) if one.kind == found.get("kind")), None)
        if kind is not None:
            self._parts.gather.strangers[(kind.plural, kinds.namespace_of(found), kinds.name_of(found))] = found

    def _forget(self, key: Key) -> None:
        self._conflicts.pop(key, None)
        self._parts.gather.refusals.pop(key, None)
        tries = self._parts.gather.tries
        for slot in [slot for slot in list(tries) if slot[:2] == key[1:]]:
            tries.pop(slot, None)

    def _note(self, key: Key, found: Outcome) -> None:
        """Figures of a decision."""
        metrics, notes = self._parts.metrics, found.notes
        if key == FLEET:
            metrics.failed_nodes.set(notes["failed"])
            metrics.marked_nodes.set(notes["marked"])
            metrics.refused_nodes.set(notes["refused"])
            for action, count in notes["would"].items():
                metrics.would.labels(action).set(count)
        elif key[0] == kinds.MODEL_SERVERS.plural:
            self._conflicts[key] = list(notes.get("conflicts", ()))
            totals: dict[str, int] = {}
            for words in list(self._conflicts.values()):
                for word in set(words):
                    totals[word] = totals.get(word, 0) + 1
            for writer in Writer:
                metrics.conflicts.labels(writer.value).set(totals.get(writer.value, 0))


def subject(action: Apply | EngineCall | StageCall | PinCall) -> str:
    """What an action is done to, as a status names it."""
    if isinstance(action, Apply):
        return f"{action.resource.kind} {action.name}"
    return action.pod if isinstance(action, EngineCall) else action.node


def noteworthy(node: Object) -> Mapping[str, Any]:
    """What of a node a decision reads: heartbeats are not it."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return {
        "labels": kinds.labels_of(node),
        "annotations": kinds.meta(node).get("annotations"),
        "spec": node.get("spec"),
        "condition": [one for one in conditions if one.get("type") == CONDITION],
    }
