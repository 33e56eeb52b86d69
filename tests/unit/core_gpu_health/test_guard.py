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


def test_the_driver_side_may_grow_while_the_child_warms_up_and_only_then() -> None:
    warm, cold = ChildMemory(GIB, warming=True), ChildMemory(GIB, warming=False)
    grown = Occupancy(GIB + 700 * MIB)
    assert looks(GrowthWatch(0), (grown, None, warm), (grown, None, cold), (grown, None, cold)) == [None] * 3
    assert looks(GrowthWatch(0), *[(grown, None, cold)] * 3)[2] is not None


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
