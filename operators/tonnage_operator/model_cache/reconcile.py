"""What a ModelCache needs now: its files staged on each chosen node by the node's cold-start service, and its images.

Pins are effects outside the cluster's objects: they are taken back on deletion, within a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tonnage_operator.actions import Action, Outcome, PinCall, StageCall, Why
from tonnage_operator.conditions import Condition, merged, no, yes
from tonnage_operator.diff import difference
from tonnage_operator.kinds import MODEL_CACHES, inside, labels_of, meta, name_of, namespace_of
from tonnage_operator.model_cache.crd import ModelCacheSpec, read
from tonnage_operator.model_cache.prepull import daemon_set
from tonnage_operator.model_server.pod import Fleet
from tonnage_operator.model_server.reconcile import set_status
from tonnage_operator.nodes import NodeView
from tonnage_operator.reading import SpecError
from tonnage_operator.release import deletion, held, hold, let_go
from tonnage_operator.times import stamp
from tonnage_runtime.kube import Object

SHOWN_MOST = 200
"""Nodes that a status lists; the numbers count all."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything a cache is decided from."""

    item: Object
    now_s: float
    fleet: Fleet = field(default_factory=Fleet)
    nodes: Sequence[Object] = ()
    services: Mapping[str, NodeView] = field(default_factory=dict)
    """Cold-start services by node."""
    there: Mapping[tuple[str, str], Object] = field(default_factory=dict)
    pinned_elsewhere: frozenset[str] = frozenset()
    """URIs that other ModelCaches pin: their pins stay."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """What was refused at the last look, by node or object."""


def reconcile(seen: Seen) -> Outcome:
    """Actions for one cache."""
    resource = inside(MODEL_CACHES, namespace_of(seen.item))
    ending = deletion(seen.item, seen.now_s)
    try:
        spec = read(seen.item)
    except SpecError as error:
        if ending.begun:
            return Outcome(tuple(let_go(seen.item, resource)))
        refused = [no("Ready", "SpecRefused", str(error))]
        return Outcome(tuple(_status(seen, resource, refused, [], {})))
    if ending.begun:
        return _released(spec, seen, resource, ending.waited_s)
    chosen = _chosen(spec, seen)
    actions: list[Action] = hold(seen.item, resource) if spec.pin and chosen and spec.uri else []
    if not actions and spec.uri:
        actions += [action for name in chosen if (action := _step(spec, seen, name)) is not None]
    found = difference(daemon_set(seen.item, spec, seen.fleet), seen.there, str(meta(seen.item).get("uid") or ""))
    actions += found.actions
    states = {name: _state(spec, seen, name) for name in chosen} if spec.uri else {}
    conditions = _conditions(spec, seen, states, found.taken)
    actions += _status(seen, resource, conditions, chosen, states)
    working = any(state not in ("Staged", "Failed") for state, _ in states.values())
    return Outcome(tuple(actions), 15.0 if working else None)


def _chosen(spec: ModelCacheSpec, seen: Seen) -> list[str]:
    fits = [node for node in seen.nodes if all(labels_of(node).get(k) == v for k, v in spec.nodes.items())]
    names = sorted(name_of(node) for node in fits)
    return names if spec.nodes else [name for name in names if name in seen.services]


def _step(spec: ModelCacheSpec, seen: Seen, node: str) -> Action | None:
    service = seen.services.get(node)
    if service is None or service.snapshots is None:
        return None
    found = service.snapshots.get(spec.uri)
    if found is None:
        state, _ = service.jobs.get(spec.uri, ("", ""))
        return (
            None if state in ("waiting", "running") else StageCall(Why.MISSING, service.url, node, spec.uri, spec.pin)
        )
    if spec.pin and not found.pinned:
        return PinCall(Why.CHANGED, service.url, node, found.key, True)
    # A pin may be a human's: it is taken back only when this resource has held it.
    ours = not spec.pin and found.pinned and held(seen.item) and spec.uri not in seen.pinned_elsewhere
    return PinCall(Why.CHANGED, service.url, node, found.key, False) if ours else None


def _state(spec: ModelCacheSpec, seen: Seen, node: str) -> tuple[str, str]:
    service = seen.services.get(node)
    if service is None:
        return "NoService", "no cold-start service runs on the node"
    if service.snapshots is None:
        return "Unknown", "the cold-start service does not answer"
    found = service.snapshots.get(spec.uri)
    if found is not None:
        if spec.revision and found.revision != spec.revision:
            return "Failed", f"the staged revision is {found.revision}, not {spec.revision}"
        return "Staged", ""
    if node in seen.refusals:
        return "Failed", seen.refusals[node]
    state, error = service.jobs.get(spec.uri, ("", ""))
    return ("Failed", error) if state == "failed" else ("Staging", "")


def _released(spec: ModelCacheSpec, seen: Seen, resource: Any, waited_s: float) -> Outcome:
    """Take the pins back, wherever the snapshot is; a node that does not answer is waited for, not for ever."""
    pins: list[Action] = []
    unknown = False
    if held(seen.item) and spec.uri and spec.uri not in seen.pinned_elsewhere:
        # A service that is away now may hold a pin that nobody would take back any more; a node that is gone may not.
        nodes = {name_of(node) for node in seen.nodes}
        staged = {one.get("node") for one in (seen.item.get("status") or {}).get("nodes") or []}
        unknown = bool(nodes & staged - seen.services.keys())
        for node, service in sorted(seen.services.items()):
            unknown |= service.snapshots is None
            found = (service.snapshots or {}).get(spec.uri)
            if found is not None and found.pinned:
                pins.append(PinCall(Why.DELETED, service.url, node, found.key, False))
    if (pins or unknown) and waited_s < spec.release_s:
        return Outcome(tuple(pins), 5.0)
    return Outcome(tuple(let_go(seen.item, resource)))


def _conditions(
    spec: ModelCacheSpec, seen: Seen, states: Mapping[str, tuple[str, str]], taken: Sequence[str]
) -> list[Condition]:
    if taken:
        return [no("Ready", "NameTaken", f"{', '.join(taken)} is not ours: rename the ModelCache, or delete it")]
    objects = [f"{name}: {text}" for name, text in sorted(seen.refusals.items()) if name not in states]
    if objects:
        return [no("Ready", "Refused", "; ".join(objects[:5]))]
    failed = [f"{name}: {text}" for name, (state, text) in states.items() if state == "Failed"]
    if failed:
        return [no("Ready", "StagingFailed", "; ".join(failed[:5]))]
    if spec.uri and not states:
        return [no("Ready", "NoNodes", "no node is selected, or none has a cold-start service")]
    waiting = [f"{name}: {text or state}" for name, (state, text) in states.items() if state != "Staged"]
    if waiting:
        return [no("Ready", "Staging", "; ".join(waiting[:5]))]
    pulled = next((one for (plural, _), one in seen.there.items() if plural == "daemonsets"), None)
    counts = (pulled or {}).get("status") or {}
    if spec.images and (pulled is None or counts.get("numberReady") != counts.get("desiredNumberScheduled")):
        return [no("Ready", "Pulling", f"images are on {counts.get('numberReady', 0)} nodes")]
    return [yes("Ready", "Staged")]


def _status(
    seen: Seen,
    resource: Any,
    conditions: list[Condition],
    chosen: Sequence[str],
    states: Mapping[str, tuple[str, str]],
) -> list[Action]:
    generation = meta(seen.item).get("generation")
    generation = generation if isinstance(generation, int) else 0
    before = seen.item.get("status") or {}
    shown = [
        {"node": name, "state": state, **({"reason": text[:300]} if text else {})}
        for name, (state, text) in sorted(states.items())
    ]
    status = {
        "observedGeneration": generation,
        "selectedNodes": len(chosen),
        "stagedNodes": sum(state == "Staged" for state, _ in states.values()),
        "nodes": shown[:SHOWN_MOST],
        "conditions": merged(before.get("conditions") or (), conditions, stamp(seen.now_s), generation),
    }
    return set_status(seen.item, resource, status)
