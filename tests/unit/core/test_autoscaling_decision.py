"""The replica decision: what moves it, what holds it, and what it says."""

from collections.abc import Sequence
from typing import Any

import pytest

from tonnage_core.autoscaling.engine_metrics import EngineReading, Signal
from tonnage_core.autoscaling.observation import Knowledge, Observation
from tonnage_core.autoscaling.policy import ScalingPolicy
from tonnage_core.autoscaling.signals import RouterQueue
from tonnage_core.autoscaling.state_machine import Code, Decision, PoolState, decide
from tonnage_core.errors import BadInputError

POLICY = ScalingPolicy(min_replicas=1, max_replicas=8, scale_down_after_s=60, unknown_hold_s=30)


def make_seen(
    url: str = "a",
    *,
    running: float | None = 0,
    waiting: float | None = 0,
    kv: float | None = 0.0,
    engine: str = "vllm",
) -> Observation:
    gauges = {Signal.RUNNING: running, Signal.WAITING: waiting, Signal.KV_USAGE: kv}
    missing = tuple(signal for signal, value in gauges.items() if value is None)
    return Observation(url, "p", Knowledge.FRESH, "", 1.0, 0.0, EngineReading(engine, gauges, {}, {}, missing, ()))


def make_silent(url: str = "z", *, since_s: float = 5.0, knowledge: Knowledge = Knowledge.STALE) -> Observation:
    return Observation(url, "p", knowledge, "timeout", since_s, since_s, None)


def make_trtllm(url: str, kv: float) -> Observation:
    reading = EngineReading("trtllm", {Signal.KV_USAGE: kv}, {}, {}, (), (Signal.WAITING, Signal.RUNNING))
    return Observation(url, "p", Knowledge.FRESH, "", 1.0, 0.0, reading)


def run(
    seen: Sequence[Observation],
    *,
    target: int | None = None,
    for_s: float = 0.0,
    policy: ScalingPolicy = POLICY,
    router: RouterQueue | None = None,
) -> Decision:
    """Decide every second for `for_s` seconds on the same observations; the last decision."""
    state = PoolState(target=target)
    for now in range(int(for_s) + 1):
        state, decision = decide(state, seen, float(now), policy, router)
    return decision


def codes(decision: Decision) -> set[Code]:
    return {reason.code for reason in decision.reasons}


def test_starts_at_the_endpoints_there_are() -> None:
    decision = run([make_seen("a"), make_seen("b")])
    assert decision.target == 2
    assert Code.INITIAL in codes(decision)


def test_kv_usage_over_its_target_adds_replicas_and_is_named() -> None:
    decision = run([make_seen("a", kv=0.9, running=5), make_seen("b", kv=0.9, running=5)], target=2)
    assert decision.target == 3
    assert decision.moved_by is Signal.KV_USAGE
    assert "kv_usage 1.8 in all, 0.8 a replica, asks for 3" in decision.reasons[-1].text


def test_a_queue_is_turned_into_replicas_by_what_runs_now() -> None:
    decision = run([make_seen("a", running=10, waiting=5, kv=0.3)], target=1)
    assert (decision.target, decision.moved_by) == (2, Signal.WAITING)


def test_a_few_waiting_requests_move_nothing() -> None:
    assert run([make_seen("a", running=10, waiting=3, kv=0.3)], target=1).target == 1


def test_a_stuck_engine_with_a_queue_and_nothing_running_adds_one() -> None:
    assert run([make_seen("a", running=0, waiting=40)], target=1).target == 2


def test_running_requests_count_once_a_target_was_measured() -> None:
    policy = ScalingPolicy(target_running_per_replica=10, max_replicas=8)
    decision = run([make_seen("a", running=33, waiting=0, kv=0.1)], target=1, policy=policy)
    assert (decision.target, decision.moved_by) == (4, Signal.RUNNING)


def test_the_maximum_stops_growth_and_says_so() -> None:
    decision = run([make_seen(str(n), kv=1.0, running=9) for n in range(8)], target=8)
    assert decision.target == 8
    assert decision.reasons[-1].code is Code.AT_MAX


def test_a_target_kept_above_what_is_asked_for_says_that_the_load_would_not_fit_fewer() -> None:
    """Growth is bounded by the one known replica; the target is not: an operator must see why 4 stays."""
    decision = run([make_seen("a", running=1, waiting=13, kv=0.5), make_silent()], target=4)
    assert (decision.target, decision.reasons[-1].code) == (4, Code.STEADY)
    assert decision.reasons[-1].text.endswith("asks for 2, yet the load would not fit fewer than 4")


def test_zero_traffic_is_a_valid_observation_and_scales_down_after_the_window() -> None:
    seen = [make_seen("a"), make_seen("b"), make_seen("c")]
    assert run(seen, for_s=59).target == 3
    decision = run(seen, for_s=60)
    assert decision.target == 1
    assert decision.reasons[-1].code is Code.SCALE_DOWN


def test_load_that_would_not_fit_fewer_with_the_margin_stays() -> None:
    """dynamo 9294: two replicas at 0.38 fit one below 0.8 but not below its margin, so there is no 2, 1, 2, 1."""
    seen = [make_seen("a", kv=0.38, running=1), make_seen("b", kv=0.38, running=1)]
    assert run(seen, target=2, for_s=200).target == 2


def test_a_burst_inside_the_window_keeps_the_replicas_it_needed() -> None:
    state, idle = PoolState(target=1), [make_seen("a")]
    state, _ = decide(state, [make_seen("a", kv=0.95, running=50, waiting=60)], 0.0, POLICY)
    assert state.target == 2
    for now in range(1, 60):
        state, decision = decide(state, idle, float(now), POLICY)
    assert decision.target == 2
    state, decision = decide(state, idle, 60.0, POLICY)
    assert decision.target == 1


def test_a_missing_metric_is_not_zero_and_holds_the_last_decision() -> None:
    """aibrix 2591, keda 1850: an unknown metric read as 0 scaled pools down."""
    seen = [make_seen("a", kv=None, waiting=None, running=None), make_seen("b", kv=None, waiting=None, running=None)]
    decision = run(seen, target=4, for_s=500)
    assert decision.target == 4
    assert Code.SIGNAL_MISSING in codes(decision)
    assert all(need.replicas is None for need in decision.needs)


def test_one_missing_signal_blocks_scale_down_while_the_others_are_idle() -> None:
    decision = run([make_seen("a", waiting=None), make_seen("b", waiting=None)], target=4, for_s=500)
    assert decision.target == 4
    assert decision.reasons[-1].code is Code.SIGNAL_MISSING
    assert decision.reasons[-1].signal is Signal.WAITING


def test_a_signal_no_endpoint_sends_is_reported_by_name_from_the_first_decision() -> None:
    """WVA 1198, 1056, aibrix 1663: a name mismatch silently disabled a path."""
    decision = run([make_seen("a", kv=None)], target=1)
    reason = next(reason for reason in decision.reasons if reason.code is Code.SIGNAL_MISSING)
    assert reason.signal is Signal.KV_USAGE
    assert "unknown, not zero" in reason.text


def test_an_endpoint_that_left_the_list_is_forgotten_at_once() -> None:
    """WVA 368, 385: series of deleted pods were counted for minutes."""
    loaded = [make_seen("a", kv=0.9, running=9), make_seen("b", kv=0.9, running=9)]
    state, decision = decide(PoolState(target=2), loaded, 0.0, POLICY)
    assert decision.load.totals[Signal.KV_USAGE].value == pytest.approx(1.8)
    _, decision = decide(state, loaded[:1], 1.0, POLICY)
    assert decision.load.totals[Signal.KV_USAGE].value == pytest.approx(0.9)


def test_a_silent_endpoint_blocks_scale_down_and_is_named() -> None:
    decision = run([make_seen("a"), make_silent("z")], target=4, for_s=200)
    assert decision.target == 4
    assert decision.reasons[-1].code is Code.ENDPOINTS_UNKNOWN
    assert "z" in decision.reasons[-1].text


def test_a_silent_endpoint_does_not_stop_scale_up() -> None:
    assert run([make_seen("a", running=10, waiting=30, kv=0.9), make_silent("z")], target=2).target == 2
    assert run([make_seen("a", running=10, waiting=30, kv=0.9), make_silent("z")], target=1).target == 2


def test_a_long_silent_endpoint_is_taken_to_be_as_busy_as_the_busiest() -> None:
    seen = [make_seen("a", kv=0.6, running=5), make_seen("b", kv=0.2, running=5), make_silent("z", since_s=31)]
    decision = run(seen, target=3, for_s=200)
    assert decision.load.totals[Signal.KV_USAGE].value == pytest.approx(1.4)
    assert decision.target == 2
    assert Code.ENDPOINTS_IMPUTED in codes(decision)


def test_a_dead_endpoint_does_not_pin_an_idle_pool_for_ever() -> None:
    """dynamo 6985: no scale-down at zero traffic because one value was never known."""
    assert run([make_seen("a"), make_silent("z", since_s=31)], target=4, for_s=100).target == 1


def test_with_nothing_known_the_target_holds_and_then_takes_the_safe_count() -> None:
    policy = ScalingPolicy(max_replicas=8, unknown_hold_s=30, safe_replicas=3)
    seen = [make_silent("a"), make_silent("b", knowledge=Knowledge.UNKNOWN)]
    held = run(seen, target=2, for_s=29, policy=policy)
    assert (held.target, held.reasons[-1].code) == (2, Code.ALL_UNKNOWN_HOLD)
    safe = run(seen, target=2, for_s=30, policy=policy)
    assert (safe.target, safe.reasons[-1].code) == (3, Code.ALL_UNKNOWN_SAFE)
    assert run(seen, target=5, for_s=300, policy=policy).target == 5


def test_pending_replicas_are_capacity_on_its_way_and_do_not_multiply_the_target() -> None:
    """aibrix 2670: 2, 4, 8, 16 while pods loaded."""
    state, policy = PoolState(target=2), ScalingPolicy(max_replicas=64)
    for now in range(200):
        busy = [make_seen("a", running=20, waiting=500 + now, kv=1.0), make_seen("b", running=20, waiting=500, kv=1.0)]
        pending = [make_silent(f"n{n}", knowledge=Knowledge.PENDING) for n in range((state.target or 2) - 2)]
        state, decision = decide(state, busy + pending, float(now), policy)
    assert decision.target == 4
    assert Code.PENDING_CAPACITY in codes(decision)


def test_replicas_that_have_joined_and_idle_do_not_raise_what_the_old_queues_ask_for() -> None:
    old = [make_seen(url, running=20, waiting=30, kv=0.5) for url in ("a", "b")]
    joined = [make_seen(url, running=1, kv=0.0) for url in ("c", "d")]
    decision = run(old + joined, target=4)
    assert (decision.target, decision.moved_by) == (6, Signal.WAITING)  # (42 running, 60 waiting) / 20
    enough = [make_seen(url, running=1, kv=0.0) for url in ("c", "d", "e", "f", "g")]
    assert run(old + enough, target=7).target == 7


def test_kv_at_a_third_with_a_long_queue_is_saturated() -> None:
    """WVA 662: cache usage sat at 32 % while the queue of a prefill-heavy load grew."""
    decision = run([make_seen("a", kv=0.32, running=4, waiting=40)], target=1)
    assert (decision.target, decision.moved_by) == (2, Signal.WAITING)


def test_an_engine_without_a_queue_metric_is_judged_by_the_rest_and_says_so() -> None:
    decision = run([make_trtllm("a", 0.7), make_trtllm("b", 0.7)], target=4, for_s=100)
    assert decision.target == 2
    assert Code.SIGNAL_NEVER_SENT in codes(decision)


def test_requests_that_wait_in_the_router_count() -> None:
    decision = run([make_seen("a", running=10, kv=0.2)], target=1, router=RouterQueue(25))
    assert (decision.target, decision.moved_by) == (2, Signal.WAITING)


def test_the_routers_queue_wakes_a_pool_with_no_endpoint() -> None:
    policy = ScalingPolicy(min_replicas=0)
    assert run([], target=0, router=RouterQueue(1), policy=policy).target == 1
    assert run([], target=0, router=RouterQueue(0), policy=policy, for_s=999).target == 0


def test_an_unknown_router_queue_holds_and_is_then_left_out() -> None:
    seen = [make_seen("a"), make_seen("b")]
    assert run(seen, target=4, for_s=200, router=RouterQueue(None, 29)).target == 4
    decision = run(seen, target=4, for_s=200, router=RouterQueue(None, 30))
    assert decision.target == 1
    assert Code.ROUTER_QUEUE_UNKNOWN in codes(decision)


def test_no_endpoints_yet_keeps_the_target() -> None:
    decision = run([], target=3, for_s=500)
    assert (decision.target, decision.reasons[-1].code) == (3, Code.NO_ENDPOINTS)


@pytest.mark.parametrize(
    "fields",
    [
        {"min_replicas": 5, "max_replicas": 4},
        {"max_replicas": 0, "min_replicas": 0},
        {"target_kv_usage": 0},
        {"target_waiting_per_replica": 0},
        {"target_running_per_replica": -1},
        {"max_growth": 1},
        {"scale_down_margin": 1.1},
        {"safe_replicas": 99},
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadInputError, match="scaling policy"):
        ScalingPolicy(**fields)
