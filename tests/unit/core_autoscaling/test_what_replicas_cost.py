"""Warm replicas and GPU classes in dollars, against figures worked out by hand."""

import pytest

from tonnage_core.autoscaling.capacity import ReplicaCost, RequestMix
from tonnage_core.autoscaling.classes import allocate
from tonnage_core.autoscaling.families import Member, bill, family_decision
from tonnage_core.autoscaling.forecast import History
from tonnage_core.autoscaling.policy import ReplicaCapacity
from tonnage_core.autoscaling.signals import Load
from tonnage_core.autoscaling.state_machine import Code, Decision, Reason
from tonnage_core.autoscaling.warm import choices, shortfalls, warm_replicas

SURGE = History(values=(2.0,) * 30 + (5.0,) * 8 + (2.0,) * 30)
"""A load of 2 replicas, 5 for two minutes, 2 again."""


def test_what_a_surge_was_short_of_and_what_warm_replicas_would_have_saved() -> None:
    """Starts of a minute, four buckets: for five buckets nothing of the surge could be known, and 2 x 1.4 (the prior's
    margin) stood against 5. Then one bucket of it was: (3 x 2 + 5) / 4 and a tenth of the trend; then two."""
    missing = shortfalls(SURGE, 60.0, 0.94, 0.98)
    slope = [3 * 9.5 / 665, 3 * (9.5 + 8.5) / 665]
    partly = [5 - 1.4 * (2.75 + 0.4 * slope[0]), 5 - 1.4 * (3.5 + 0.4 * slope[1])]
    assert [one for one in missing if one] == pytest.approx([2.2] * 5 + partly)
    assert len(missing) == 60, "a quarter of an hour of forecasts"
    table = choices(missing, interval_s=15.0, start_s=60.0, replica_rps=10.0, usd_per_hour=3.0)
    # Each of three replicas was missing for more than a minute, and what is asked for at once serves after a minute.
    assert [one.misses_per_hour for one in table] == [3 * 600 * 4, 2 * 600 * 4, 600 * 4, 0]
    assert [one.idle_usd_per_hour for one in table] == [0, 3, 6, 9]
    kept, pays = (
        warm_replicas(
            missing, interval_s=15.0, start_s=60.0, replica_rps=10.0, usd_per_hour=3.0, usd_per_miss=usd_per_miss
        )
        for usd_per_miss in (0.001, 0.002)
    )
    assert kept.replicas == 0, "2.40 $ an hour saved, 3 $ idle"
    assert (pays.replicas, pays.idle_usd_per_hour, pays.saved_misses_per_hour) == (3, 9.0, 7200.0)


def member(pool: str, usd: float, most: int, token_s: float, step_s: float = 0.0) -> Member:
    cost = ReplicaCost(token_s, 0.0, 0.0, full_s=10 * step_s, step_s=step_s)
    return Member(pool, usd, most, ReplicaCapacity(cost, 2.0, 0.05))


def decided(target: int) -> Decision:
    return Decision(target, None, None, (), (), Load({}, None, None))


def test_the_bill_of_two_classes_is_the_sum_of_the_cheapest_first() -> None:
    """An L40S of 0.90 $ carries 0.4 of an H100 of 3 $: 2.25 $ a unit. A load of 2 is five L40S, 4 two H100 more."""
    members = [member("h100", 3.0, 10, 1e-4), member("l40s", 0.9, 5, 2.5e-4)]
    found = bill([(0.0, decided(2)), (1800.0, decided(4)), (3600.0, decided(4))], members)
    assert found.usd == pytest.approx(0.5 * 5 * 0.9 + 0.5 * (5 * 0.9 + 2 * 3.0))
    assert found.usd_first_only == pytest.approx(0.5 * 2 * 3.0 + 0.5 * 4 * 3.0)
    assert found.peak == {"h100": 2, "l40s": 5}
    assert found.replica_hours == pytest.approx({"h100": 1.0, "l40s": 5.0})
    assert found.short_hours == 0.0


def test_a_class_that_cannot_keep_the_slo_comes_last_however_cheap_and_goes_first() -> None:
    mix = RequestMix(4000.0, 100.0)
    fast, slow = member("h100", 3.0, 2, 1e-4), member("old", 0.1, 9, 1e-3)
    assert fast.capacity.unfit(mix) == ""
    assert "4 s there, 2 s are allowed" in slow.capacity.unfit(mix)
    assert "60 ms there" in member("x", 1.0, 1, 1e-4, step_s=0.06).capacity.unfit(mix)
    offers = [fast.offer(mix, 1.0, 0), slow.offer(mix, 0.1, 0)]
    assert allocate(2.0, 2.0, offers).replicas == {"h100": 2, "old": 0}
    found = allocate(2.5, 2.5, offers)
    assert found.replicas == {"h100": 2, "old": 5}, "late answers are better than none"
    assert "no class that keeps the limits can take it" in found.reasons[-1]
    there = [fast.offer(mix, 1.0, 2), slow.offer(mix, 0.1, 5)]
    assert allocate(2.0, 2.0, there).replicas == {"h100": 2, "old": 0}
    assert allocate(1.5, 1.5, there).replicas == {"h100": 2, "old": 0}, "before a dearer one that would fit too"


def test_limits_are_out_of_reach_of_a_family_when_no_class_keeps_them() -> None:
    remark, other = Reason(Code.LIMIT_OUT_OF_REACH, "of the first class"), Reason(Code.STEADY, "")
    decision = Decision(3, None, None, (remark, other), (), Load({}, None, None))
    slow, slower, fast = member("a", 1.0, 9, 1e-2), member("b", 1.0, 9, 2e-2), member("c", 1.0, 9, 1e-4)
    assert family_decision(decision, [slow, slower]).reasons == (remark, other)
    assert family_decision(decision, [slow, fast]).reasons == (other,)
