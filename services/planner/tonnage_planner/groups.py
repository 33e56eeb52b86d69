"""Pools that are decided together: a family of GPU classes, and the prefill and decode pools of one model."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tonnage_core.autoscaling.capacity import ReplicaCost, RequestMix
from tonnage_core.autoscaling.disaggregated import PairLimits, PairTargets, coupled, pair_targets
from tonnage_core.autoscaling.families import (
    Member,
    at_speed,
    family_decision,
    member_decision,
    mix_of,
    share,
    speeds,
)
from tonnage_core.autoscaling.observation import Knowledge, Observation
from tonnage_core.autoscaling.policy import ScalingPolicy
from tonnage_core.autoscaling.state_machine import Code, Decision, Reason
from tonnage_planner.capacity import capacity_of
from tonnage_planner.settings import FamilySettings, PairSettings, PlannerSettings
from tonnage_runtime.errors import SettingsError

log = logging.getLogger("tonnage.planner")


@dataclass
class Family:
    """One family: its members, the first of them the reference, and until when those that do not start are left."""

    name: str
    members: tuple[Member, ...]
    budget_usd_per_hour: float | None
    retry_s: float
    until_s: dict[str, float]

    def observations(self, seen: Sequence[Observation], last: Decision | None) -> list[Observation]:
        """The members' endpoints at their classes' speeds."""
        return at_speed(seen, speeds(self.members, mix_of(last)))

    def share(self, decision: Decision, seen: Sequence[Observation], now_s: float) -> dict[str, Decision]:
        """Each member's part of the decision."""
        for one in seen:
            if one.knowledge is Knowledge.STUCK:
                self.until_s[one.pool] = now_s + self.retry_s
        blocked = frozenset(pool for pool, until in self.until_s.items() if now_s < until)
        found = share(decision, self.members, seen, blocked, budget_usd_per_hour=self.budget_usd_per_hour)
        told = family_decision(decision, self.members)
        return {one.pool: member_decision(told, found, one.pool) for one in self.members}


class Groups:
    """Families and pairs of the settings; raises `SettingsError` for one that cannot be followed."""

    def __init__(self, settings: PlannerSettings) -> None:
        self._settings = settings
        self.families = {name: self._family(name, one) for name, one in settings.families.items()}
        self.pairs = settings.pairs
        self.member_of = {one.pool: name for name, family in self.families.items() for one in family.members}
        self._refuse_twice()

    def _family(self, name: str, given: FamilySettings) -> Family:
        members = []
        for one in given.classes:
            model = given.model or self._settings.policy.model or name
            hardware = given.model_copy(update={"gpu": one.gpu, "tp": one.tp, "model": model})
            capacity = capacity_of(name, hardware)
            assert capacity is not None
            members.append(Member(one.pool, one.usd_per_hour, one.most, capacity))
        policy = self._settings.family_policy(name)
        return Family(name, tuple(members), policy.budget_usd_per_hour, policy.retry_stuck_s, {})

    def _refuse_twice(self) -> None:
        pools = [one.pool for family in self.families.values() for one in family.members]
        pools += [pool for pair in self.pairs.values() for pool in (pair.prefill, pair.decode)]
        twice = sorted({pool for pool in pools if pools.count(pool) > 1} | (set(pools) & set(self.families)))
        if twice:
            raise SettingsError(f"pool {twice[0]} is in more than one family or pair, or is a family: keep one")

    def policy(self, name: str) -> ScalingPolicy:
        """A family's policy: its capacity is the first class's, and its budget is kept when the load is shared out."""
        family, policy = self.families[name], self._settings.family_policy(name)
        given = self._settings.families[name]
        model = given.model or self._settings.policy.model or name
        first = given.classes[0]
        hardware = given.model_copy(update={"gpu": first.gpu, "tp": first.tp, "model": model})
        capacity = capacity_of(family.name, hardware)
        return replace(policy, capacity=capacity, budget_usd_per_hour=None)

    def couple(
        self, made: Mapping[str, Decision], policy_of: Callable[[str], ScalingPolicy]
    ) -> Iterable[tuple[str, Decision]]:
        """The decisions of pairs whose target the other pool moves."""
        for name, pair in self.pairs.items():
            prefill, decode = made.get(pair.prefill), made.get(pair.decode)
            if prefill is None or decode is None:
                continue
            needs = _needs(pair, prefill, decode, policy_of)
            wanted = coupled(prefill.target, decode.target, needs)
            for pool, own, target in ((pair.prefill, prefill, wanted[0]), (pair.decode, decode, wanted[1])):
                if own.target != target:
                    text = f"{own.target} to {target}: {name}'s prefill and decode pools serve one rate of requests"
                    yield pool, replace(own, target=target, reasons=(*own.reasons, Reason(Code.OTHER_POOL, text)))


def _needs(
    pair: PairSettings, prefill: Decision, decode: Decision, policy_of: Callable[[str], ScalingPolicy]
) -> PairTargets | None:
    """What the forecast rate of requests needs of both pools; None while either is not known."""
    costs = _cost(policy_of(pair.prefill)), _cost(policy_of(pair.decode))
    said, asked = prefill.outlook, decode.outlook
    if costs[0] is None or costs[1] is None or said is None or asked is None:
        return None
    if said.demand is None or said.forecast is None or asked.demand is None or said.demand.request_s <= 0:
        return None
    arrivals = said.forecast.upper / said.demand.request_s
    limits = PairLimits(policy_of(pair.prefill).affordable, policy_of(pair.decode).affordable)
    mix = RequestMix(said.demand.prompt, asked.demand.output)
    return pair_targets(arrivals, mix, costs[0], costs[1], limits)


def _cost(policy: ScalingPolicy) -> ReplicaCost | None:
    return policy.capacity.cost if policy.capacity is not None else None
