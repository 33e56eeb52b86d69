"""Marks on a node, and how each is told to be ours.

Labels and the condition have names of ours. A cordon is a field that a human may set too: it is ours only with the
annotation that came with it in the same write, and only then it is taken back. A human who uncordons a node that we
cordoned has the last word: it is not cordoned again while the failure lasts, and a later cordon is theirs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tonnage_operator.kinds import CLASS_LABEL, label_value, labels_of, meta
from tonnage_runtime.kube import Object

HEALTH_LABEL = "tonnage.dev/gpu-health"
TAINT = "tonnage.dev/gpu-failed"
CORDONED = "tonnage.dev/cordoned"
CONDITION = "TonnageGpuHealthy"
YIELDED = "undone"
"""Value of the annotation `CORDONED` once a human has taken the cordon back."""
MODES = ("dry_run", "label", "taint", "cordon")
"""Each does what the one before does, and more; dry_run writes nothing on nodes."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What a node has, or should have."""

    health: str = ""
    gpu_class: str = ""
    taint: bool = False
    cordon: bool = False


def marks_of(node: Object) -> Marks:
    """Our marks on it."""
    labels = labels_of(node)
    taints = (node.get("spec") or {}).get("taints") or []
    return Marks(
        health=str(labels.get(HEALTH_LABEL) or ""),
        gpu_class=str(labels.get(CLASS_LABEL) or ""),
        taint=any(one.get("key") == TAINT for one in taints),
        cordon=CORDONED in (meta(node).get("annotations") or {}),
    )


def cordoned_by_others(node: Object) -> bool:
    """Whether a human or another tool has cordoned it."""
    return bool((node.get("spec") or {}).get("unschedulable")) and not marks_of(node).cordon


def write(node: Object, wanted: Marks, stamp: str) -> Mapping[str, Any] | None:
    """The merge patch that leads to `wanted`, for the version that was read; None when nothing is to be done.

    Taints are one list without owners by item, so the whole list is written, that of others unchanged.
    """
    have = marks_of(node)
    said = (meta(node).get("annotations") or {}).get(CORDONED)
    undone = have.cordon and not (node.get("spec") or {}).get("unschedulable")
    yields = undone and wanted.cordon and said != YIELDED
    if have == wanted and not yields:
        return None
    metadata: dict[str, Any] = {"resourceVersion": meta(node).get("resourceVersion")}
    labels = {HEALTH_LABEL: wanted.health or None, CLASS_LABEL: label_value(wanted.gpu_class) or None}
    before = {HEALTH_LABEL: have.health or None, CLASS_LABEL: have.gpu_class or None}
    if changed := {name: value for name, value in labels.items() if value != before[name]}:
        metadata["labels"] = changed
    spec: dict[str, Any] = {}
    if have.taint != wanted.taint:
        others = [one for one in (node.get("spec") or {}).get("taints") or [] if one.get("key") != TAINT]
        spec["taints"] = others + ([{"key": TAINT, "effect": "NoSchedule"}] if wanted.taint else [])
    if have.cordon != wanted.cordon:
        metadata["annotations"] = {CORDONED: stamp if wanted.cordon else None}
        if wanted.cordon or (said != YIELDED and not undone):
            spec["unschedulable"] = True if wanted.cordon else None
    if yields:
        metadata["annotations"] = {CORDONED: YIELDED}
    return {"metadata": metadata, **({"spec": spec} if spec else {})}
