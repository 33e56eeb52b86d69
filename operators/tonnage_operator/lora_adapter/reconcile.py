"""What a LoraAdapter needs now: on chosen replicas staged, loaded, loaded again after a restart; elsewhere unloaded
once no request uses it. What each engine holds is asked of the engine, so nothing that was written down can be wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tonnage_operator.actions import Action, EngineCall, Outcome, StageCall, Why
from tonnage_operator.conditions import Condition, merged, no, yes
from tonnage_operator.kinds import LORA_ADAPTERS, inside, meta, namespace_of
from tonnage_operator.lora_adapter.crd import LoraAdapterSpec, read
from tonnage_operator.lora_adapter.placement import place
from tonnage_operator.model_server.reconcile import set_status
from tonnage_operator.nodes import NodeView
from tonnage_operator.pods import UNKNOWN_ENGINE, EngineView, PodView
from tonnage_operator.reading import SpecError
from tonnage_operator.release import deletion, hold, let_go
from tonnage_operator.times import stamp
from tonnage_runtime.kube import Object

FAILED_AFTER = 5
"""Tries in a row until the status says Failed; it goes on trying, each time later."""
PAUSE_S, PAUSE_MOST_S = 5.0, 300.0


@dataclass(frozen=True, slots=True)
class Try:
    """Tries to load on one pod: how many failed in a row, the last error, and when the next is due (epoch, s)."""

    failures: int = 0
    error: str = ""
    next_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything an adapter is decided from."""

    item: Object
    now_s: float
    server: Object | None = None
    slots: int = 0
    pods: Sequence[PodView] = ()
    """The server's pods that are routed to."""
    engines: Mapping[str, EngineView] = field(default_factory=dict)
    caches: Mapping[str, NodeView] = field(default_factory=dict)
    """By node."""
    adapters: frozenset[str] = frozenset()
    """Names of all adapters of this server, this one included."""
    tries: Mapping[str, Try] = field(default_factory=dict)
    """By pod uid."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Calls that were refused at the last look, by node or pod."""
    shared_cache: bool = True
    """Engines see the node's cache."""


def failed(before: Try, error: str, now_s: float) -> Try:
    """The tries after one more failure: the pause doubles."""
    pause = min(PAUSE_MOST_S, PAUSE_S * 2.0 ** min(before.failures, 10))
    return Try(before.failures + 1, error, now_s + pause)


def reconcile(seen: Seen) -> Outcome:
    """Actions for one adapter."""
    resource = inside(LORA_ADAPTERS, namespace_of(seen.item))
    ending = deletion(seen.item, seen.now_s)
    try:
        spec = read(seen.item)
    except SpecError as error:
        if ending.begun:
            return Outcome(tuple(let_go(seen.item, resource)))
        return Outcome(tuple(_refused(seen, resource, str(error))))
    name = spec.name
    holders = [pod for pod in seen.pods if name in (_engine(seen, pod).adapters or frozenset())]
    if ending.begun:
        unloads = [action for pod in holders for action in _unload(spec, seen, pod, Why.DELETED)]
        # One that is not ready now may have it still, and would keep it for ever.
        had = {str(one.get("uid")) for one in (seen.item.get("status") or {}).get("placements") or []}
        unknown = [
            pod
            for pod in seen.pods
            if (pod.serves or (pod.uid in had and not pod.going)) and _engine(seen, pod).adapters is None
        ]
        if (not holders and not unknown) or ending.waited_s >= spec.release_s:
            return Outcome(tuple(let_go(seen.item, resource)))
        return Outcome(tuple(unloads), 5.0)
    chosen = _chosen(spec, seen)
    uids = {pod.uid for pod in chosen}
    actions: list[Action] = hold(seen.item, resource) if chosen else []
    if not actions:
        # The finalizer is there before the first effect outside: a deletion in between forgets nothing.
        for pod in chosen:
            actions += _load(spec, seen, pod)
        for pod in holders:
            if pod.uid not in uids:
                actions += _unload(spec, seen, pod, Why.MOVED)
    actions += _status(spec, seen, resource, chosen)
    waits = any(spec.name not in (_engine(seen, pod).adapters or frozenset()) for pod in chosen)
    return Outcome(tuple(actions), 5.0 if waits or len(holders) > len(chosen) else None)


def _engine(seen: Seen, pod: PodView) -> EngineView:
    return seen.engines.get(pod.uid, UNKNOWN_ENGINE)


def _chosen(spec: LoraAdapterSpec, seen: Seen) -> list[PodView]:
    before = {str(one.get("uid")) for one in (seen.item.get("status") or {}).get("placements") or []}
    loaded = {pod.uid for pod in seen.pods if spec.name in (_engine(seen, pod).adapters or frozenset())}
    free = {}
    for pod in seen.pods:
        adapters = _engine(seen, pod).adapters
        # An engine that is not known has no slot that is known to be free.
        free[pod.uid] = 0 if adapters is None else seen.slots - len(adapters & seen.adapters - {spec.name})
    return place(spec.name, spec.replicas, seen.pods, frozenset(before | loaded), free)


def _load(spec: LoraAdapterSpec, seen: Seen, pod: PodView) -> list[Action]:
    engine = _engine(seen, pod)
    if engine.adapters is None or spec.name in engine.adapters:
        return []
    if seen.tries.get(pod.uid, Try()).next_s > seen.now_s:
        return []
    before = {str(one.get("uid")): one for one in (seen.item.get("status") or {}).get("placements") or []}
    again = (before.get(pod.uid) or {}).get("state") == "Loaded"
    why = Why.RESTARTED if again else Why.PLACED
    if not spec.staged:
        return [EngineCall(why, "load", pod.url, pod.name, spec.name, spec.uri.removeprefix("hf://"))]
    cache = seen.caches.get(pod.node)
    if cache is None or cache.snapshots is None or not seen.shared_cache:
        return []
    found = cache.snapshots.get(spec.uri)
    if found is None:
        running = cache.jobs.get(spec.uri, ("", ""))[0] in ("waiting", "running")
        return [] if running else [StageCall(why, cache.url, pod.node, spec.uri)]
    if spec.revision and found.revision != spec.revision:
        return []
    return [EngineCall(why, "load", pod.url, pod.name, spec.name, found.path)]


def _unload(spec: LoraAdapterSpec, seen: Seen, pod: PodView, why: Why) -> list[Action]:
    """Only when no request of this engine uses it; where that is not known, not yet."""
    busy = _engine(seen, pod).busy_adapters
    if busy is None or spec.name in busy or pod.going:
        return []
    return [EngineCall(why, "unload", pod.url, pod.name, spec.name)]


def _placement(spec: LoraAdapterSpec, seen: Seen, pod: PodView) -> dict[str, Any]:
    engine, tries = _engine(seen, pod), seen.tries.get(pod.uid, Try())
    reason = _obstacle(spec, seen, pod)
    state = "Failed" if reason.startswith("staging failed") else "Waiting"
    if engine.adapters is None:
        state, reason = "Unknown", "the engine does not answer"
    elif spec.name in engine.adapters:
        state, reason = "Loaded", ""
    elif tries.failures:
        state = "Failed" if tries.failures >= FAILED_AFTER else "Retrying"
        reason = tries.error
    made: dict[str, Any] = {"pod": pod.name, "uid": pod.uid, "node": pod.node, "state": state}
    return made | ({"reason": reason[:500]} if reason else {})


def _obstacle(spec: LoraAdapterSpec, seen: Seen, pod: PodView) -> str:
    if not spec.staged:
        return ""
    cache = seen.caches.get(pod.node)
    if not seen.shared_cache:
        return "engines do not see the nodes' cache: give the chart coldstart.cache.hostPath"
    if cache is None or cache.snapshots is None:
        return f"the cold-start service of node {pod.node} does not answer"
    found = cache.snapshots.get(spec.uri)
    if found is not None and spec.revision and found.revision != spec.revision:
        return f"the staged revision is {found.revision}, not {spec.revision}"
    state, error = cache.jobs.get(spec.uri, ("", ""))
    if found is None and pod.node in seen.refusals:
        return f"staging failed: {seen.refusals[pod.node]}"
    if found is None and state == "failed":
        return f"staging failed: {error}"
    return "being staged" if found is None else ""


def _status(spec: LoraAdapterSpec, seen: Seen, resource: Any, chosen: Sequence[PodView]) -> list[Action]:
    placements = [_placement(spec, seen, pod) for pod in sorted(chosen, key=lambda pod: pod.name)]
    loaded = sum(one["state"] == "Loaded" for one in placements)
    condition = _ready(spec, seen, placements, loaded)
    before = seen.item.get("status") or {}
    generation = meta(seen.item).get("generation")
    generation = generation if isinstance(generation, int) else 0
    status = {
        "observedGeneration": generation,
        "phase": _phase(placements, loaded, condition),
        "replicas": len(placements),
        "loadedReplicas": loaded,
        "placements": placements,
        "conditions": merged(before.get("conditions") or (), [condition], stamp(seen.now_s), generation),
    }
    return set_status(seen.item, resource, status)


def _phase(placements: Sequence[Mapping[str, Any]], loaded: int, condition: Condition) -> str:
    if condition.status == "True":
        return "Loaded"
    if any(one["state"] == "Failed" for one in placements) or condition.reason in ("NoServer", "NoSlots"):
        return "Failed"
    return "Loading" if placements else "Pending"


def _ready(spec: LoraAdapterSpec, seen: Seen, placements: Sequence[Mapping[str, Any]], loaded: int) -> Condition:
    if seen.server is None:
        return no("Ready", "NoServer", f"there is no ModelServer {spec.server} in {spec.namespace}")
    if seen.slots < 1:
        return no("Ready", "NoSlots", f"ModelServer {spec.server} has no adapter slots: set spec.engine.loraSlots")
    bad = next((one for one in placements if one["state"] == "Failed"), None)
    if bad is not None:
        return no("Ready", "LoadFailed", f"{bad['pod']}: {bad.get('reason', '')}")
    wanted = len(placements) if spec.replicas is None else spec.replicas
    if loaded and loaded >= wanted:
        return yes("Ready", "Loaded")
    if len(placements) < wanted:
        return no("Ready", "NoRoom", f"{len(placements)} of {wanted} replicas are ready and have a free slot")
    waiting = next((f"{one['pod']}: {one['reason']}" for one in placements if one.get("reason")), "")
    return no("Ready", "Loading", waiting)


def _refused(seen: Seen, resource: Any, message: str) -> list[Action]:
    before = seen.item.get("status") or {}
    generation = meta(seen.item).get("generation")
    generation = generation if isinstance(generation, int) else 0
    conditions = merged(
        before.get("conditions") or (), [no("Ready", "SpecRefused", message)], stamp(seen.now_s), generation
    )
    kept = {key: before[key] for key in ("replicas", "loadedReplicas", "placements") if key in before}
    return set_status(seen.item, resource, {**kept, "phase": "Failed", "conditions": conditions})
