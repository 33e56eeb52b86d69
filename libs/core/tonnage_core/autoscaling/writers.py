"""One writer of a replica count: who else writes it, from what the API shows.

Two autoscalers on one field undo each other every few seconds. So before a direct write the object is looked at: an
HPA or ScaledObject that names it, an owner that sets the field by server-side apply (GitOps), or a value that is not
the one last written. Whoever it is, it is reported in a condition and not fought: nothing is written until it is gone,
or until a human says that this writer is the one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

SCALE_MANAGERS = frozenset({"kube-controller-manager", "horizontal-pod-autoscaler", "keda-operator"})


class Writer(StrEnum):
    """What kind of other writer it is; a label value."""

    HPA = "hpa"
    SCALED_OBJECT = "scaled_object"
    APPLY = "apply"
    """A tool that applies the whole object: GitOps, or kubectl apply with `replicas` in the file."""
    UNKNOWN = "unknown"
    """The value changed and nobody says who did it: a human with kubectl scale, or a script."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another writer, in words that say what to do."""

    writer: Writer
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Target:
    """What is scaled."""

    kind: str
    name: str
    own_manager: str
    own_objects: frozenset[str] = frozenset()
    """Names of scaling objects that were generated for it, as `Kind/name`."""


def conflicts(
    target: Target,
    scaled: Mapping[str, Any],
    scalers: Sequence[Mapping[str, Any]],
    written: int | None,
) -> tuple[Conflict, ...]:
    """Every other writer of `scaled`'s replicas. `scalers` are the namespace's HPAs and ScaledObjects, `written` is the
    value this writer set last (None: none yet).
    """
    found = [conflict for one in scalers if (conflict := _scaler(target, one)) is not None]
    found += _appliers(target, scaled)
    present = (scaled.get("spec") or {}).get("replicas")
    if not found and written is not None and isinstance(present, int) and present != written:
        text = (
            f"replicas is {present} and {written} was written: someone else set it. Set mode manual to keep their "
            "value, or write the old value back to go on"
        )
        found.append(Conflict(Writer.UNKNOWN, "", text))
    return tuple(found)


def _scaler(target: Target, one: Mapping[str, Any]) -> Conflict | None:
    """The HPA or ScaledObject as a conflict when it names the target and is not its own."""
    kind = str(one.get("kind", ""))
    metadata, spec = one.get("metadata") or {}, one.get("spec") or {}
    name, reference = str(metadata.get("name", "")), spec.get("scaleTargetRef") or {}
    # KEDA takes a reference without a kind for a Deployment.
    if reference.get("name") != target.name or reference.get("kind", "Deployment") != target.kind:
        return None
    if f"{kind}/{name}" in target.own_objects or _made_by_own(target, metadata):
        return None
    writer = Writer.HPA if kind == "HorizontalPodAutoscaler" else Writer.SCALED_OBJECT
    return Conflict(
        writer, name, f"{kind} {name} also scales {target.kind} {target.name}: delete it, or set mode manual"
    )


def _made_by_own(target: Target, metadata: Mapping[str, Any]) -> bool:
    """An HPA that KEDA made for a ScaledObject of ours."""
    owners = metadata.get("ownerReferences") or []
    return any(f"{owner.get('kind')}/{owner.get('name')}" in target.own_objects for owner in owners)


def _appliers(target: Target, scaled: Mapping[str, Any]) -> list[Conflict]:
    """Managers that own `spec.replicas` by apply; updates through `scale` are seen by the value."""
    found = []
    for entry in (scaled.get("metadata") or {}).get("managedFields") or []:
        manager = str(entry.get("manager", ""))
        if manager == target.own_manager or manager in SCALE_MANAGERS or entry.get("operation") != "Apply":
            continue
        if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {}):
            text = f"{manager} applies replicas of {target.kind} {target.name}: leave the field out of its manifest"
            found.append(Conflict(Writer.APPLY, manager, text))
    return found


def bad_fallback(scaled_object: Mapping[str, Any], hpa: Mapping[str, Any] | None) -> str | None:
    """Why KEDA's HPA for a ScaledObject does not follow the planner, or None.

    KEDA that could not reach the scaler when it made the HPA gives it a CPU metric and never repairs it (keda#7729).
    """
    if hpa is None:
        return None
    metrics = (hpa.get("spec") or {}).get("metrics") or []
    if any(metric.get("type") == "External" for metric in metrics):
        return None
    name = (scaled_object.get("metadata") or {}).get("name", "")
    return (
        f"the HPA of ScaledObject {name} was made while the scaler could not be reached and follows no external "
        "metric: delete the HPA, and KEDA makes it anew"
    )
