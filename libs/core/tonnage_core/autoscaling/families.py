"""A pool of several GPU classes: one demand, one decision in replicas of a reference class, shared out by price.

Each class is a pool of its own for whoever starts replicas (a ModelServer has one class); together they are a family.
The decision sees the endpoints of all members, each with the speed of its class, and its target is a load in replicas
of the first class. `classes.allocate` turns it into replicas a member: cheapest feasible first, dearest released first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tonnage_core.autoscaling.capacity import ReplicaCost, RequestMix
from tonnage_core.autoscaling.classes import Allocation, GpuClass, allocate
from tonnage_core.autoscaling.observation import Knowledge, Observation
from tonnage_core.autoscaling.policy import ReplicaCapacity
from tonnage_core.autoscaling.state_machine import Code, Decision, Reason

USUAL = RequestMix(1000.0, 200.0)
"""The requests by which classes are compared until some were seen."""


@dataclass(frozen=True, slots=True)
class Member:
    """One class: its pool, price (dollars an hour a replica), most replicas, and what a replica can do."""

    pool: str
    usd_per_hour: float
    most: int
    capacity: ReplicaCapacity

    @property
    def cost(self) -> ReplicaCost:
        """What a request takes of a replica."""
        return self.capacity.cost

    def offer(self, mix: RequestMix, speed: float, have: int, *, blocked: bool = False) -> GpuClass:
        """The class as the load is shared out over it."""
        unfit = self.capacity.unfit(mix)
        return GpuClass(self.pool, self.usd_per_hour, speed, self.most, have, blocked, unfit)


def speeds(members: Sequence[Member], mix: RequestMix) -> dict[str, float]:
    """What a replica of each member carries, in replicas of the first one."""
    first = members[0].cost.request_s(mix.prompt, mix.output)
    return {one.pool: first / one.cost.request_s(mix.prompt, mix.output) for one in members}


def mix_of(decision: Decision | None) -> RequestMix:
    """The requests seen lately, else the usual ones."""
    demand = decision.outlook.demand if decision is not None and decision.outlook is not None else None
    return USUAL if demand is None else RequestMix(demand.prompt, demand.output)


def at_speed(seen: Sequence[Observation], known: Mapping[str, float]) -> list[Observation]:
    """The members' endpoints as the family's; those that cannot start are the classes' concern, not the load's."""
    return [replace(one, speed=known[one.pool]) for one in seen if one.knowledge is not Knowledge.STUCK]


def share(
    decision: Decision,
    members: Sequence[Member],
    seen: Sequence[Observation],
    blocked: frozenset[str],
    *,
    budget_usd_per_hour: float | None = None,
) -> Allocation:
    """Replicas of each member for the family's target. `seen` are all endpoints, `blocked` pools that do not start."""
    mix = mix_of(decision)
    known = speeds(members, mix)
    have = {one.pool: 0 for one in members}
    for one in seen:
        have[one.pool] += one.knowledge is not Knowledge.STUCK
    classes = [one.offer(mix, known[one.pool], have[one.pool], blocked=one.pool in blocked) for one in members]
    target = float(decision.target)
    return allocate(target, target, classes, budget_usd_per_hour=budget_usd_per_hour)


def family_decision(decision: Decision, members: Sequence[Member]) -> Decision:
    """The decision without the remark that no replica keeps the limits, where another class than the first does."""
    mix = mix_of(decision)
    if all(one.capacity.unfit(mix) for one in members):
        return decision
    kept = tuple(reason for reason in decision.reasons if reason.code is not Code.LIMIT_OUT_OF_REACH)
    return replace(decision, reasons=kept)


def member_decision(decision: Decision, allocation: Allocation, pool: str) -> Decision:
    """The family's decision as one member is told of it: its own number, and why it is that."""
    told = [Reason(Code.GPU_CLASS, text) for text in allocation.reasons]
    if allocation.short > 1e-9:
        told.append(Reason(Code.AT_MAX, f"{allocation.short:.2f} replicas of the first class find no place"))
    return replace(decision, target=allocation.replicas[pool], reasons=(*told, *decision.reasons))


@dataclass(frozen=True, slots=True)
class ClassBill:
    """What following a course of targets costs on several classes, were replicas there at once: replica-hours and most
    replicas of each member, dollars, dollars of the first class alone, and the load-hours that found no place."""

    replica_hours: Mapping[str, float]
    peak: Mapping[str, int]
    usd: float
    usd_first_only: float
    short_hours: float


def bill(decisions: Sequence[tuple[float, Decision]], members: Sequence[Member]) -> ClassBill:
    """The bill of `decisions` (seconds, decision) from the first to the last."""
    hours, peak = {one.pool: 0.0 for one in members}, {one.pool: 0 for one in members}
    usd = first = short = 0.0
    have = {one.pool: 0 for one in members}
    for (at_s, decision), (until_s, _) in pairwise(decisions):
        mix = mix_of(decision)
        known = speeds(members, mix)
        classes = [one.offer(mix, known[one.pool], have[one.pool]) for one in members]
        found = allocate(float(decision.target), float(decision.target), classes)
        share_h = (until_s - at_s) / 3600
        have = found.replicas
        for pool, count in have.items():
            hours[pool] += count * share_h
            peak[pool] = max(peak[pool], count)
        usd += found.usd_per_hour * share_h
        first += decision.target * members[0].usd_per_hour * share_h
        short += found.short * share_h
    return ClassBill(hours, peak, usd, first, short)
