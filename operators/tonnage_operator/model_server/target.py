"""How many replicas, by whom they are set, and who else sets them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tonnage_core.autoscaling.hook_objects import (
    Mode,
    ScaledPool,
    effective_mode,
    horizontal_pod_autoscaler,
    scaled_object,
)
from tonnage_core.autoscaling.writers import SCALE_MANAGERS, Conflict, Target, Writer, bad_fallback, conflicts
from tonnage_operator.actions import Delete, Why
from tonnage_operator.diff import Wanted
from tonnage_operator.kinds import (
    AUTOSCALERS,
    MANAGER,
    MODEL_SERVERS,
    SCALED_OBJECTS,
    inside,
    meta,
    name_of,
)
from tonnage_operator.model_server.children import metadata
from tonnage_operator.model_server.crd import ModelServerSpec
from tonnage_operator.model_server.pod import Fleet
from tonnage_runtime.kube import Object


@dataclass(frozen=True, slots=True)
class Advice:
    """What the planner says of a pool; None where it does not say, or cannot be asked (`problem`)."""

    target: int | None = None
    warm: int | None = None
    idle_usd_per_hour: float | None = None
    saved_misses_per_hour: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Scale:
    """The number of serving replicas and why. `active` None: it cannot be known now."""

    replicas: int
    mode: Mode
    active: bool | None
    reason: str
    message: str
    conflicts: tuple[Conflict, ...] = ()
    stated: int | None = None
    """What is said of the Deployment's field; None: another manager holds it, and nothing is said."""


def scaling_mode(spec: ModelServerSpec, fleet: Fleet) -> tuple[Mode, str]:
    """The way that works here, and why it is not the one asked for."""
    asked: Mode = spec.scaling.mode  # type: ignore[assignment]  # read() has checked it
    mode, why = effective_mode(asked, _pool(spec, fleet), tolerance_served=fleet.tolerance_served)
    if mode == "keda" and not fleet.keda:
        return "direct", "KEDA is not set up for the operator: scale is written directly"
    return mode, why


def scaling_object(item: Object, spec: ModelServerSpec, fleet: Fleet) -> Wanted | None:
    """The object that carries the planner's target to the ModelServer's scale; None in the other modes."""
    mode, _ = scaling_mode(spec, fleet)
    if mode not in ("keda", "hpa"):
        return None
    kind = SCALED_OBJECTS if mode == "keda" else AUTOSCALERS
    make = scaled_object if mode == "keda" else horizontal_pod_autoscaler
    made = make(_pool(spec, fleet), tolerance_served=fleet.tolerance_served)
    own = metadata(item, spec, spec.name)
    own["labels"] |= made["metadata"]["labels"]
    return Wanted(inside(kind, spec.namespace), spec.name, {"metadata": own, "spec": made["spec"]})


def _pool(spec: ModelServerSpec, fleet: Fleet) -> ScaledPool:
    return ScaledPool(
        name=spec.name,
        namespace=spec.namespace,
        min_replicas=0 if spec.scaling.to_zero else spec.scaling.least,
        max_replicas=spec.scaling.most,
        scaler_address=fleet.scaler_address,
        scaler_tls=fleet.scaler_tls,
        target_kind=MODEL_SERVERS.kind,
        target_api=MODEL_SERVERS.api_version,
    )


def decide(
    item: Object,
    spec: ModelServerSpec,
    fleet: Fleet,
    advice: Advice,
    workload: Object | None,
    scalers: Sequence[Object],
    written: int | None,
) -> Scale:
    """The number of serving replicas. `workload` is the Deployment that is there, `written` the last value of a direct
    write."""
    mode, why = scaling_mode(spec, fleet)
    others = _others(item, spec, mode, scalers, written)
    present = replicas_of(workload)
    found = _number(spec, mode, advice, others, present)
    on_workload = _on_workload(spec, workload, scalers, found.replicas)
    if on_workload and present is not None:
        others = (*on_workload, *others)
        # Left out only where another manager holds the field: a field that nobody holds would fall back to 1.
        stated = present if MANAGER in owners(workload) else None
        return Scale(present, mode, False, "ScaleConflict", on_workload[0].text, others, stated)
    message = "; ".join(part for part in (why, found.message) if part)
    return Scale(found.replicas, mode, found.active, found.reason, message, others, found.replicas)


def replicas_of(item: Object | None) -> int | None:
    """`spec.replicas`; None when there is none."""
    found = ((item or {}).get("spec") or {}).get("replicas")
    return found if isinstance(found, int) else None


def owners(item: Object | None) -> frozenset[str]:
    """The managers that hold `spec.replicas`."""
    entries = meta(item or {}).get("managedFields") or []
    held = [e for e in entries if "f:replicas" in ((e.get("fieldsV1") or {}).get("f:spec") or {})]
    return frozenset(str(entry.get("manager", "")) for entry in held)


def _number(
    spec: ModelServerSpec, mode: Mode, advice: Advice, others: tuple[Conflict, ...], present: int | None
) -> Scale:
    """The number by mode. A target that is not known keeps what is there; with nothing there yet it is the minimum."""
    scaling = spec.scaling
    # An HPA does nothing for an object that has no replicas.
    least = 0 if scaling.to_zero else max(int(mode == "hpa"), scaling.least)
    asked = spec.replicas if spec.replicas is not None else scaling.least
    within = max(least, min(scaling.most, asked))
    if mode == "manual":
        return Scale(asked, mode, False, "Manual", "replicas are set by hand: kubectl scale modelserver")
    if mode in ("keda", "hpa"):
        if spec.replicas is None:
            return Scale(within, mode, None, "NotWrittenYet", "the scaling object has not written a number yet")
        return Scale(within, mode, True, "Following", "")
    if others:
        return Scale(within, mode, False, "ScaleConflict", others[0].text)
    if advice.target is None:
        held = spec.replicas if spec.replicas is not None else present if present is not None else scaling.least
        text = f"the planner's target is not known ({advice.problem or 'no answer'}): the present number is kept"
        return Scale(max(least, min(scaling.most, held)), mode, None, "TargetUnknown", text)
    return Scale(max(least, min(scaling.most, advice.target)), mode, True, "Following", "")


def _others(
    item: Object, spec: ModelServerSpec, mode: Mode, scalers: Sequence[Object], written: int | None
) -> tuple[Conflict, ...]:
    """Other writers of the ModelServer's own number."""
    if mode == "manual":
        return ()
    own = {"keda": f"ScaledObject/{spec.name}", "hpa": f"HorizontalPodAutoscaler/{spec.name}"}.get(mode)
    target = Target("ModelServer", spec.name, MANAGER, frozenset({own} if own else ()))
    # The value alone is no proof: a write of ours may have been the last thing before a restart.
    theirs = written if mode == "direct" and _strangers(item) else None
    return conflicts(target, item, scalers, theirs)


def _strangers(item: Object | None) -> frozenset[str]:
    """The managers that hold the number where we do not. HPA and KEDA write in the name of an object: they are told of
    while it is there, and gone with it."""
    held = owners(item)
    return frozenset() if MANAGER in held else held - SCALE_MANAGERS


def _on_workload(
    spec: ModelServerSpec, workload: Object | None, scalers: Sequence[Object], wanted: int
) -> tuple[Conflict, ...]:
    """Other writers of the Deployment's number, which is the operator's in every mode."""
    target = Target("Deployment", spec.name, MANAGER)
    found = conflicts(target, workload or {}, scalers, None)
    theirs = _strangers(workload)
    if found or not theirs or replicas_of(workload) == wanted:
        return found
    names = ", ".join(sorted(theirs))
    text = (
        f"{names} set replicas of Deployment {spec.name} to {replicas_of(workload)}: scale the ModelServer instead; "
        f"write {wanted} there to give the field back"
    )
    return (Conflict(Writer.UNKNOWN, names, text),)


def repairs(spec: ModelServerSpec, scalers: Sequence[Object]) -> list[Delete]:
    """HPAs that KEDA made for our ScaledObject while it could not reach the scaler: it makes them anew."""
    mine: Any = next((s for s in scalers if s.get("kind") == "ScaledObject" and name_of(s) == spec.name), None)
    if mine is None:
        return []
    made = [
        one
        for one in scalers
        if one.get("kind") == "HorizontalPodAutoscaler"
        and any(o.get("uid") == meta(mine).get("uid") for o in meta(one).get("ownerReferences") or [])
    ]
    hpas = inside(AUTOSCALERS, spec.namespace)
    return [
        Delete(Why.DRIFTED, hpas, name_of(one), str(meta(one).get("uid") or ""))
        for one in made
        if bad_fallback(mine, one) is not None
    ]
