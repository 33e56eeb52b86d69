"""From the verdicts of all GPUs to marks on nodes: pure, over the whole fleet at once, since the breaker counts it.

A node whose GPU fails is tainted, and cordoned, where that is allowed. At most a share of the fleet is: a bad driver or
a wrong threshold fails every GPU at once, and must not empty the cluster. What is refused by the breaker is said. Every
mark goes again when the verdict is better, the profile is gone, the mode is turned down, or the operator is removed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tonnage_operator.actions import Action, Merge, Outcome, SetStatus, Why
from tonnage_operator.gpu_profile.crd import VERDICTS, ProfileView
from tonnage_operator.gpu_profile.marks import CONDITION, MODES, Marks, cordoned_by_others, marks_of, write
from tonnage_operator.kinds import NODES, label_value, name_of
from tonnage_operator.times import stamp
from tonnage_runtime.kube import Object


@dataclass(frozen=True, slots=True)
class NodeRules:
    """What may be done to nodes. `most_share` of the nodes with GPUs (0..1), at least one, are marked as failed."""

    mode: str = "dry_run"
    most_share: float = 0.1


@dataclass(frozen=True, slots=True)
class Seen:
    """The fleet."""

    now_s: float
    rules: NodeRules = field(default_factory=NodeRules)
    profiles: Sequence[ProfileView] = ()
    nodes: Sequence[Object] = ()


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What is wanted of one node, and why; `refused`: the breaker keeps it from being marked as failed."""

    node: str
    marks: Marks
    verdict: str
    message: str
    refused: bool = False


def plan(seen: Seen) -> list[NodePlan]:
    """What each node should have, were nothing held back by dry run; nodes without profiles should have nothing."""
    by_node: dict[str, list[ProfileView]] = {}
    for profile in seen.profiles:
        by_node.setdefault(profile.node, []).append(profile)
    nodes = {name_of(node): node for node in seen.nodes}
    failed = sorted(
        (name for name, gpus in by_node.items() if name in nodes and _worst(gpus) == "FAIL"),
        # Nodes that are marked already stay marked: else the breaker would move marks about.
        key=lambda name: (not _acted(marks_of(nodes[name])), name),
    )
    allowed = max(1, int(seen.rules.most_share * len(by_node.keys() & nodes.keys())))
    acted = set(failed[:allowed])
    plans = []
    for name in sorted(nodes):
        gpus = by_node.get(name)
        if gpus is None:
            plans.append(NodePlan(name, Marks(), "", ""))
            continue
        refused = name in failed and name not in acted
        plans.append(_plan(nodes[name], gpus, seen.rules.mode, name in acted, refused))
    return plans


def _plan(node: Object, gpus: Sequence[ProfileView], mode: str, act: bool, refused: bool) -> NodePlan:
    level, worst = MODES.index(mode), _worst(gpus)
    classes = {gpu.gpu_class for gpu in gpus}
    told = [f"GPU {gpu.index}: {', '.join(gpu.reasons) or gpu.verdict}" for gpu in gpus if gpu.verdict == worst]
    marks = Marks(
        health=worst.lower(),
        gpu_class=label_value(classes.pop()) if len(classes) == 1 else "",
        taint=act and level >= MODES.index("taint"),
        cordon=act and level >= MODES.index("cordon") and not cordoned_by_others(node),
    )
    message = "; ".join(told) if worst != "OK" else f"{len(gpus)} GPUs are well"
    if refused:
        message = f"{message}; not acted on: the share of failed nodes is at its limit"
    return NodePlan(name_of(node), marks, worst, message, refused)


def _worst(gpus: Sequence[ProfileView]) -> str:
    return max((gpu.verdict for gpu in gpus), key=VERDICTS.index)


def _acted(marks: Marks) -> bool:
    return marks.taint or marks.cordon


def reconcile(seen: Seen) -> Outcome:
    """Actions for the fleet's nodes. In dry run no node is written; what would be done is in the notes."""
    plans = plan(seen)
    nodes = {name_of(node): node for node in seen.nodes}
    would: dict[str, int] = {"label": 0, "taint": 0, "cordon": 0, "release": 0}
    actions: list[Action] = []
    if seen.rules.mode == "dry_run":
        # The way back from another mode: what was marked is released.
        wanted = [replace(one, marks=Marks(), verdict="") for one in plans]
        intended = plan(replace(seen, rules=replace(seen.rules, mode="cordon")))
    else:
        wanted, intended = plans, plans
    for one in intended:
        _count(would, marks_of(nodes[one.node]), one.marks)
    for one in wanted:
        actions += _actions(nodes[one.node], one, seen.now_s)
    notes = {
        "would": would,
        "refused": sum(one.refused for one in plans),
        "failed": sum(one.verdict == "FAIL" for one in plans),
        "marked": sum(_acted(marks_of(node)) for node in seen.nodes),
        "nodes": sum(bool(one.verdict) for one in plans),
    }
    return Outcome(tuple(actions), None, notes)


def _count(would: dict[str, int], have: Marks, wanted: Marks) -> None:
    would["label"] += (have.health, have.gpu_class) != (wanted.health, wanted.gpu_class)
    would["taint"] += wanted.taint and not have.taint
    would["cordon"] += wanted.cordon and not have.cordon
    would["release"] += (have.taint and not wanted.taint) or (have.cordon and not wanted.cordon)


def _actions(node: Object, one: NodePlan, now_s: float) -> list[Action]:
    found: list[Action] = []
    if (body := write(node, one.marks, stamp(now_s))) is not None:
        better = _acted(marks_of(node)) and not _acted(one.marks)
        found.append(Merge(Why.RECOVERED if better else Why.VERDICT, NODES, one.node, body))
    if (condition := _condition(node, one, stamp(now_s))) is not None:
        found.append(SetStatus(Why.VERDICT, NODES, one.node, condition))
    return found


def _condition(node: Object, one: NodePlan, now: str) -> Mapping[str, Any] | None:
    """The node's condition by server-side apply; an empty list takes ours away. None: it is right as it is."""
    have = next((c for c in (node.get("status") or {}).get("conditions") or [] if c.get("type") == CONDITION), None)
    if not one.verdict:
        return None if have is None else {"conditions": []}
    word = {"OK": "True", "WARN": "True", "FAIL": "False", "UNKNOWN": "Unknown"}[one.verdict]
    reason = {"OK": "AllWell", "WARN": "Degraded", "FAIL": "Failed", "UNKNOWN": "NotMeasured"}[one.verdict]
    said = {"type": CONDITION, "status": word, "reason": reason, "message": one.message[:1000]}
    if have is not None and all(have.get(key) == value for key, value in said.items()):
        return None
    since = have.get("lastTransitionTime") if have is not None and have.get("status") == word else now
    return {"conditions": [{**said, "lastTransitionTime": since or now}]}
