"""The warm pool: replicas that have started and are not routed to, asleep or awake, which serve while cold ones start.

A warm pod becomes a serving one by a label that routers follow, and goes back when the cold ones are there. A sleeping
engine is woken first, and put to sleep only while it is not routed to and has no request: what is not known is no.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tonnage_operator.actions import Action, EngineCall, Merge, Why
from tonnage_operator.kinds import MODEL, PODS, inside
from tonnage_operator.model_server.crd import ModelServerSpec
from tonnage_operator.model_server.target import Advice
from tonnage_operator.pods import UNKNOWN_ENGINE, EngineView, PodView, of_part


@dataclass(frozen=True, slots=True)
class WarmPlan:
    """What to do with the warm pods, and how many of them serve."""

    actions: tuple[Action, ...] = ()
    lent: int = 0


def warm_size(spec: ModelServerSpec, advice: Advice) -> int:
    """How many to keep. With `warmAuto` the planner's advice counts when it is known, `warm` at least."""
    asked = spec.scaling.warm
    if spec.scaling.warm_auto and advice.warm is not None:
        asked = max(asked, advice.warm)
    return min(asked, spec.scaling.most)


def lend(spec: ModelServerSpec, pods: Sequence[PodView], engines: Mapping[str, EngineView], desired: int) -> WarmPlan:
    """Route to as many warm pods as serving ones are missing; those that serve already come first."""
    missing = max(0, desired - sum(pod.serves for pod in of_part(pods, "serving")))
    usable = sorted((pod for pod in of_part(pods, "warm") if pod.ready), key=lambda pod: not pod.routed)
    actions: list[Action] = []
    for index, pod in enumerate(usable):
        seen = engines.get(pod.uid, UNKNOWN_ENGINE)
        actions += _promoted(spec, pod, seen) if index < missing else _rested(spec, pod, seen)
    return WarmPlan(tuple(actions), min(missing, len(usable)))


def _promoted(spec: ModelServerSpec, pod: PodView, seen: EngineView) -> list[Action]:
    if spec.sleeps and seen.sleeping is not False:
        return [EngineCall(Why.PROMOTE, "wake", pod.url, pod.name)]
    return [] if pod.routed else [_label(spec, pod, spec.name, Why.PROMOTE)]


def _rested(spec: ModelServerSpec, pod: PodView, seen: EngineView) -> list[Action]:
    if pod.routed:
        return [_label(spec, pod, None, Why.DEMOTE)]
    if spec.sleeps and seen.sleeping is False and seen.requests == 0:
        return [EngineCall(Why.DEMOTE, "sleep", pod.url, pod.name)]
    return []


def _label(spec: ModelServerSpec, pod: PodView, value: str | None, why: Why) -> Merge:
    metadata = {"uid": pod.uid, "resourceVersion": pod.version, "labels": {MODEL: value}}
    return Merge(why, inside(PODS, spec.namespace), pod.name, {"metadata": metadata})
