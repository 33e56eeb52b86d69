"""What a ModelServer needs now: pure, from the objects that are there to actions in order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tonnage_operator.actions import Action, Outcome, SetScale, SetStatus, Why
from tonnage_operator.conditions import UNKNOWN, Condition, merged, no, yes
from tonnage_operator.diff import difference, holds
from tonnage_operator.kinds import MODEL_SERVERS, PART_LABEL, SERVER_LABEL, inside, meta, name_of, namespace_of
from tonnage_operator.model_server.children import children
from tonnage_operator.model_server.crd import ModelServerSpec, read
from tonnage_operator.model_server.pod import Fleet
from tonnage_operator.model_server.target import Advice, Scale, decide, repairs, scaling_object
from tonnage_operator.model_server.warm import WarmPlan, lend, warm_size
from tonnage_operator.pods import EngineView, PodView, of_part
from tonnage_operator.reading import SpecError
from tonnage_runtime.kube import Object


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything a ModelServer is decided from. `now` is RFC 3339."""

    item: Object
    now: str
    fleet: Fleet = field(default_factory=Fleet)
    there: Mapping[tuple[str, str], Object] = field(default_factory=dict)
    """Objects by (plural, name) that it owns, or that have its children's names."""
    pods: Sequence[PodView] = ()
    engines: Mapping[str, EngineView] = field(default_factory=dict)
    scalers: Sequence[Object] = ()
    advice: Advice = field(default_factory=Advice)
    refusals: Mapping[str, str] = field(default_factory=dict)
    """What the API server refused at the last look, by object."""


def reconcile(seen: Seen) -> Outcome:
    """Actions for one ModelServer. One that is being deleted needs none: what it owns goes with it."""
    if meta(seen.item).get("deletionTimestamp"):
        return Outcome(())
    try:
        spec = read(seen.item)
    except SpecError as error:
        return Outcome(_refused(seen, error))
    status = seen.item.get("status") or {}
    written = status.get("writtenReplicas")
    workload = seen.there.get(("deployments", spec.name))
    scale = decide(seen.item, spec, seen.fleet, seen.advice, workload, seen.scalers, written)
    size = warm_size(spec, seen.advice)
    wanted = children(seen.item, spec, seen.fleet, scale.stated, size)
    if (scaler := scaling_object(seen.item, spec, seen.fleet)) is not None:
        wanted.append(scaler)
    found = difference(wanted, seen.there, str(meta(seen.item).get("uid") or ""))
    warm = lend(spec, seen.pods, seen.engines, scale.replicas)
    actions: list[Action] = [*found.actions, *repairs(spec, seen.scalers), *warm.actions]
    actions += _written(seen.item, spec, scale)
    conditions = _conditions(spec, seen, scale, found.taken)
    actions += _status(spec, seen, scale, conditions, warm, size)
    waits = bool(warm.actions) or scale.mode == "direct"
    notes = {"conflicts": [one.writer.value for one in scale.conflicts]}
    return Outcome(tuple(actions), 10.0 if waits else None, notes)


def _written(item: Object, spec: ModelServerSpec, scale: Scale) -> list[Action]:
    """In mode direct the target goes through the ModelServer's own scale, where everybody sees it. The first number is
    written in every mode: without one the API server serves no scale, and HPA, KEDA and kubectl cannot read it."""
    first = spec.replicas is None
    if not first and (scale.mode != "direct" or scale.active is not True or scale.replicas == spec.replicas):
        return []
    version = str(meta(item).get("resourceVersion") or "")
    return [SetScale(Why.TARGET, inside(MODEL_SERVERS, spec.namespace), spec.name, scale.replicas, version)]


def _conditions(spec: ModelServerSpec, seen: Seen, scale: Scale, taken: tuple[str, ...]) -> list[Condition]:
    serving = of_part(seen.pods, "serving")
    ready = sum(pod.ready for pod in serving)
    stuck = next((pod.unschedulable for pod in serving if pod.unschedulable), "")
    active = {True: yes, False: no, None: _unknown}[scale.active]
    others = "; ".join(dict.fromkeys(one.text for one in scale.conflicts))
    return [
        yes("SpecValid", "Read"),
        yes("Ready", "Serving") if ready >= scale.replicas else no("Ready", "Starting", _waiting(ready, scale)),
        active("ScalingActive", scale.reason, scale.message),
        yes("ScaleConflict", "OtherWriter", others) if others else no("ScaleConflict", "OneWriter"),
        no("Schedulable", "NoRoom", stuck) if stuck else yes("Schedulable", "Placed"),
        no("NamesFree", "Taken", f"{', '.join(taken)} is not ours: rename the ModelServer, or delete it")
        if taken
        else yes("NamesFree", "Free"),
        no("Applied", "Refused", "; ".join(map(": ".join, sorted(seen.refusals.items()))))
        if seen.refusals
        else yes("Applied", "Applied"),
    ]


def _unknown(kind: str, reason: str, message: str) -> Condition:
    return Condition(kind, UNKNOWN, reason, message)


def _waiting(ready: int, scale: Scale) -> str:
    return f"{ready} of {scale.replicas} replicas are ready"


def _status(
    spec: ModelServerSpec, seen: Seen, scale: Scale, conditions: list[Condition], warm: WarmPlan, size: int
) -> list[Action]:
    serving = of_part(seen.pods, "serving")
    before = seen.item.get("status") or {}
    written = before.get("writtenReplicas")
    if scale.mode == "direct" and scale.active is True:
        written = scale.replicas
    status: dict[str, Any] = {
        "observedGeneration": _generation(seen.item),
        "replicas": len(serving),
        "readyReplicas": sum(pod.ready for pod in serving),
        "desiredReplicas": scale.replicas,
        "selector": f"{SERVER_LABEL}={spec.name},{PART_LABEL}=serving",
        "scalingMode": scale.mode,
        "warm": _warm_status(spec, seen, size, warm),
        "conditions": merged(before.get("conditions") or (), conditions, seen.now, _generation(seen.item)),
    }
    if scale.mode == "direct" and written is not None:
        status["writtenReplicas"] = written
    return set_status(seen.item, inside(MODEL_SERVERS, spec.namespace), status)


def _warm_status(spec: ModelServerSpec, seen: Seen, size: int, warm: WarmPlan) -> dict[str, Any]:
    """What the pool costs and saves, where the planner says it."""
    part = "placeholder" if spec.scaling.warm_kind == "placeholder" else "warm"
    figures = {
        "idleUsdPerHour": seen.advice.idle_usd_per_hour,
        "savedMissesPerHour": seen.advice.saved_misses_per_hour,
        "advisedReplicas": seen.advice.warm,
    }
    return {
        "kind": spec.scaling.warm_kind,
        "replicas": size,
        "readyReplicas": sum(pod.ready for pod in of_part(seen.pods, part)),
        "lentReplicas": warm.lent,
        **{name: value for name, value in figures.items() if value is not None},
    }


def set_status(item: Object, resource: Any, status: Mapping[str, Any]) -> list[Action]:
    """The status as an action, when it is another than the one that is there."""
    before = item.get("status") or {}
    if holds(before, status) and set(before) <= set(status):
        return []
    return [SetStatus(Why.STATUS, resource, name_of(item), status)]


def _generation(item: Object) -> int:
    found = meta(item).get("generation")
    return found if isinstance(found, int) else 0


def _refused(seen: Seen, error: SpecError) -> tuple[Action, ...]:
    """Say what is wrong, keep the figures that are known, and touch nothing that runs."""
    before = dict(seen.item.get("status") or {})
    old = [one for one in before.get("conditions") or [] if one.get("type") != "SpecValid"]
    refused = merged(
        before.get("conditions") or (), [no("SpecValid", "Refused", str(error))], seen.now, _generation(seen.item)
    )
    conditions = sorted([*old, *refused], key=lambda one: str(one.get("type")))
    status = {**before, "observedGeneration": _generation(seen.item), "conditions": conditions}
    return tuple(set_status(seen.item, inside(MODEL_SERVERS, namespace_of(seen.item)), status))
