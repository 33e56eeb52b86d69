"""The guard: what counts as idle, what counts as someone else, and how often a GPU may be probed."""

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


def test_64_mib_that_nobody_explains_stop_the_run_at_the_third_look() -> None:
    child = ChildMemory(8 * GIB, warming=False)
    step = (Occupancy(9 * GIB + 64 * MIB), None, child)
    state = GrowthWatch(600 * MIB, overhead_bytes=1 * GIB - 600 * MIB)
    reasons = looks(state, step, step, step)
    assert reasons[:2] == [None, None]
    assert reasons[2] is not None and "64 MiB" in reasons[2]


def test_a_spike_of_one_look_is_forgiven() -> None:
    child = ChildMemory(8 * GIB, warming=False)
    state = GrowthWatch(0, overhead_bytes=GIB)
    spike, calm = (Occupancy(9 * GIB + 512 * MIB), None, child), (Occupancy(9 * GIB), None, child)
    assert looks(state, spike, spike, calm, spike, spike, calm) == [None] * 6


def test_the_driver_side_may_creep_while_the_child_warms_up_and_only_then() -> None:
    steps = [Occupancy(GIB + n * 50 * MIB) for n in range(1, 9)]
    warm, cold = ChildMemory(GIB, warming=True), ChildMemory(GIB, warming=False)
    assert looks(GrowthWatch(0), *[(step, None, warm) for step in steps]) == [None] * 8
    assert looks(GrowthWatch(0), *[(step, None, cold) for step in steps])[3] is not None


def test_a_strangers_context_is_seen_even_while_the_child_warms_up() -> None:
    warm = ChildMemory(GIB, warming=True)
    calm, grown = Occupancy(GIB + 600 * MIB), Occupancy(GIB + 1100 * MIB)
    found = looks(GrowthWatch(0, 600 * MIB), (calm, None, warm), *[(grown, None, warm)] * 3)
    assert found[:3] == [None] * 3
    assert found[3] is not None and "500 MiB" in found[3]


def test_the_childs_own_context_is_allowed_before_its_first_word() -> None:
    context = Occupancy(700 * MIB)
    first = ChildMemory(0, warming=True)
    assert looks(GrowthWatch(0), (context, None, None), *[(context, None, first)] * 4) == [None] * 5


def test_an_old_word_of_the_child_neither_counts_nor_clears_until_it_is_deaf() -> None:
    grown = Occupancy(4 * GIB)
    old, deaf = ChildMemory(GIB, True, age_s=0.5), ChildMemory(GIB, True, age_s=1.5)
    assert looks(GrowthWatch(0), *[(grown, None, old)] * 5) == [None] * 5
    assert looks(GrowthWatch(0), *[(grown, None, deaf)] * 3)[2] is not None


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
