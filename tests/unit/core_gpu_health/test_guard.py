"""The guard: what counts as idle, what counts as someone else, and how often a GPU may be probed."""

import json
from pathlib import Path

import pytest

from tonnage_core.gpu_health.guard import (
    Budget,
    ChildMemory,
    GrowthRule,
    GrowthWatch,
    IdleRule,
    Occupancy,
    Run,
    budget_reason,
    busy_reason,
    watch,
)

MIB = 1 << 20
GIB = 1 << 30
RULE = GrowthRule()


def looks(state: GrowthWatch, *steps: tuple[Occupancy, int | None, ChildMemory | None]) -> list[str | None]:
    reasons = []
    for seen, own, child in steps:
        state, reason = watch(state, seen, own, child, RULE)
        reasons.append(reason)
    return reasons


def test_a_gpu_with_a_foreign_process_is_busy() -> None:
    assert busy_reason(Occupancy(100 * MIB, (4711,), 0.0), IdleRule()) == "processes use the GPU: 4711"


def test_unknown_memory_use_is_not_idle() -> None:
    assert busy_reason(Occupancy(None, None, 0.0), IdleRule()) is not None


def test_an_idle_gpu_has_no_reason() -> None:
    assert busy_reason(Occupancy(600 * MIB, (), 0.0), IdleRule()) is None


def test_growth_that_the_driver_attributes_to_the_child_is_explained() -> None:
    step = (Occupancy(60 * GIB, ()), 60 * GIB - 600 * MIB, None)
    assert looks(GrowthWatch(600 * MIB), step, step, step, step) == [None] * 4


def test_64_mib_that_nobody_explains_stop_the_run_at_the_fourth_look() -> None:
    child = ChildMemory(8 * GIB, warming=False)
    step = (Occupancy(9 * GIB + 64 * MIB), None, child)
    reasons = looks(GrowthWatch(600 * MIB, 0, 1 * GIB - 600 * MIB), step, step, step, step)
    assert reasons[:3] == [None] * 3
    assert reasons[3] is not None and "64 MiB" in reasons[3]


def test_a_spike_of_one_look_is_forgiven() -> None:
    child = ChildMemory(8 * GIB, warming=False)
    state = GrowthWatch(0, 0, GIB)
    spike, calm = (Occupancy(9 * GIB + 512 * MIB), None, child), (Occupancy(9 * GIB), None, child)
    assert looks(state, spike, spike, calm, spike, spike, calm) == [None] * 6


def test_the_driver_side_may_creep_while_the_child_warms_up_and_only_then() -> None:
    steps = [Occupancy(GIB + n * 8 * MIB) for n in range(1, 30)]
    warm, cold = ChildMemory(GIB, warming=True), ChildMemory(GIB, warming=False)
    assert looks(GrowthWatch(0, 0), *[(step, None, warm) for step in steps]) == [None] * 29
    assert looks(GrowthWatch(0, 0), *[(step, None, cold) for step in steps])[-1] is not None


def test_a_strangers_context_is_seen_even_while_the_child_warms_up() -> None:
    warm = ChildMemory(GIB, warming=True)
    calm, grown = Occupancy(GIB + 600 * MIB), Occupancy(GIB + 1100 * MIB)
    found = looks(GrowthWatch(0, 600 * MIB, 600 * MIB), (calm, None, warm), *[(grown, None, warm)] * 4)
    assert found[:4] == [None] * 4
    assert found[4] is not None and "500 MiB" in found[4]


def test_the_childs_own_context_is_allowed_around_its_first_word_and_no_later() -> None:
    none, context, more = Occupancy(0), Occupancy(700 * MIB), Occupancy(1100 * MIB)
    first = ChildMemory(0, warming=False)
    assert looks(GrowthWatch(0), (none, None, None), *[(context, None, first)] * 9) == [None] * 10
    late = looks(GrowthWatch(0), (none, None, None), *[(context, None, first)] * 6, *[(more, None, first)] * 4)
    assert late[-1] is not None and "400 MiB" in late[-1]


def test_an_old_word_of_the_child_neither_counts_nor_clears_until_it_is_deaf() -> None:
    grown = Occupancy(4 * GIB)
    old, deaf = ChildMemory(GIB, True, age_s=0.5), ChildMemory(GIB, True, age_s=1.5)
    assert looks(GrowthWatch(0, 0), *[(grown, None, old)] * 5) == [None] * 5
    assert looks(GrowthWatch(0, 0), *[(grown, None, deaf)] * 4)[3] is not None


def test_a_foreign_process_stops_the_run_at_once() -> None:
    assert looks(GrowthWatch(0), (Occupancy(GIB, (99,)), GIB, None)) == ["another process came: 99"]


def test_a_cooldown_separates_runs() -> None:
    reason = budget_reason([Run(1000.0, 60.0)], 1100.0, 25.0, Budget(cooldown_s=300.0))
    assert reason is not None and reason[0] == "cooldown"
    assert budget_reason([Run(1000.0, 60.0)], 1400.0, 25.0, Budget(cooldown_s=300.0)) is None


def test_a_days_budget_ends_and_comes_back() -> None:
    runs = [Run(float(hour * 3600), 100.0) for hour in range(8)]
    reason = budget_reason(runs, 8 * 3600.0, 120.0, Budget(seconds_per_day=900.0, cooldown_s=0.0))
    assert reason is not None and reason[0] == "budget"
    assert budget_reason(runs, 40 * 3600.0, 120.0, Budget(seconds_per_day=900.0, cooldown_s=0.0)) is None


def recorded() -> list[tuple[Occupancy, None, ChildMemory | None]]:
    document = json.loads((Path(__file__).parent / "h200_guard_looks.json").read_text())
    return [
        (Occupancy(used * MIB), None, None if held is None else ChildMemory(held * MIB, bool(warming), age))
        for _, used, held, warming, age in document["looks"]
    ]


def with_stranger(calm: list[tuple[Occupancy, None, ChildMemory | None]], start: int, taken: int) -> int | None:
    """Looks from the stranger's arrival to the stop; None when it is never seen."""
    state = GrowthWatch(0)
    for index, (seen, own, child) in enumerate(calm):
        assert seen.used_bytes is not None
        used = seen.used_bytes + (taken if index >= start else 0)
        state, reason = watch(state, Occupancy(used), own, child, RULE)
        if reason is not None:
            return index - start
    return None


def test_a_recorded_run_that_nobody_disturbed_is_never_stopped() -> None:
    assert with_stranger(recorded(), start=10**9, taken=0) is None


@pytest.mark.parametrize("taken_mib, least_seen", [(160, 0.9), (300, 1.0), (505, 1.0)])
def test_a_stranger_in_a_recorded_run_is_seen_within_a_second(taken_mib: int, least_seen: float) -> None:
    calm = recorded()
    first = next(index for index, look in enumerate(calm) if look[2] is not None) + RULE.settle_looks
    found = [with_stranger(calm, start, taken_mib * MIB) for start in range(first, len(calm) - 12, 67)]
    seen = [looks for looks in found if looks is not None]
    assert len(seen) >= least_seen * len(found)
    assert max(seen) <= 10


def test_the_drivers_stack_pool_is_no_stranger() -> None:
    warm = ChildMemory(GIB, warming=True)
    before, after = Occupancy(GIB + 700 * MIB), Occupancy(GIB + 770 * MIB)
    calm = [(before, None, warm)] * 3 + [(after, None, warm)] * 9
    assert looks(GrowthWatch(0, 700 * MIB, 700 * MIB), *calm) == [None] * 12


def test_memory_says_nothing_while_the_child_has_helpers() -> None:
    helped = ChildMemory(GIB, warming=True, helpers=True)
    assert looks(GrowthWatch(0, 0), *[(Occupancy(9 * GIB), None, helped)] * 9) == [None] * 9
