"""GPU classes, prefill and decode together, warm replicas, limits, saved state, writers, generated objects."""

import pytest

from tonnage_core.autoscaling.capacity import ReplicaCost, RequestMix, fill_limit, replica_cost
from tonnage_core.autoscaling.classes import GpuClass, allocate
from tonnage_core.autoscaling.disaggregated import PairLimits, pair_targets
from tonnage_core.autoscaling.forecast import History
from tonnage_core.autoscaling.hook_objects import (
    ScaledPool,
    effective_mode,
    horizontal_pod_autoscaler,
    scaled_object,
)
from tonnage_core.autoscaling.limits import Caps, allowed, stepped
from tonnage_core.autoscaling.outlook import OutlookState
from tonnage_core.autoscaling.policy import ScalingPolicy
from tonnage_core.autoscaling.state_codec import StateDocumentError, decode, encode
from tonnage_core.autoscaling.state_machine import PoolState
from tonnage_core.autoscaling.warm import WarmAdvice, warm_replicas
from tonnage_core.autoscaling.writers import Target, Writer, bad_fallback, conflicts
from tonnage_core.engine.batch import Batch
from tonnage_core.errors import BadInputError

H100 = GpuClass("H100", 3.0, 1.0, most=4)
L40S = GpuClass("L40S", 0.9, 0.4, most=20)
COST = ReplicaCost(token_s=1e-4, kv_s=0.0, pair_s=0.0)


def test_the_cheapest_class_of_what_it_carries_comes_first_and_the_dearest_goes_first() -> None:
    up = allocate(3.0, 3.0, [H100, L40S])
    assert up.replicas == {"H100": 0, "L40S": 8}
    mixed = [GpuClass("H100", 3.0, 1.0, 4, have=3), GpuClass("L40S", 0.9, 0.4, 20, have=5)]
    assert allocate(3.0, 3.2, mixed).replicas == {"H100": 2, "L40S": 3}
    assert allocate(0.5, 0.5, mixed).replicas == {"H100": 0, "L40S": 2}


def test_a_class_that_is_full_or_does_not_start_is_passed_over() -> None:
    blocked = GpuClass("L40S", 0.9, 0.4, 20, blocked=True)
    found = allocate(3.0, 3.0, [H100, blocked])
    assert found.replicas == {"H100": 3, "L40S": 0}
    assert "did not start" in found.reasons[0]
    assert allocate(20.0, 20.0, [H100, L40S]).short == pytest.approx(8.0)


def test_a_budget_is_never_passed() -> None:
    found = allocate(10.0, 10.0, [H100, L40S], budget_usd_per_hour=5.0)
    assert found.usd_per_hour <= 5.0
    assert found.short > 0
    policy = ScalingPolicy(max_replicas=16, usd_per_replica_hour=3.0, budget_usd_per_hour=10.0)
    assert policy.clamp(12) == 3


def test_two_classes_of_one_name_are_refused() -> None:
    with pytest.raises(BadInputError, match="twice"):
        allocate(1.0, 1.0, [H100, H100])


def test_prefill_and_decode_go_to_zero_together_and_share_one_rate() -> None:
    mix, limits = RequestMix(1000, 200), PairLimits(8, 8)
    assert pair_targets(0.0, mix, COST, COST, limits) == pair_targets(-1.0, mix, COST, COST, limits)
    nothing = pair_targets(0.0, mix, COST, COST, limits)
    assert (nothing.prefill, nothing.decode) == (0, 0)
    few = pair_targets(0.01, mix, COST, COST, limits)
    assert (few.prefill, few.decode) == (1, 1)
    many = pair_targets(1000.0, mix, COST, COST, limits)
    assert many.limited == "prefill"
    assert many.prefill == 8
    assert many.decode == 2, "more decode replicas than prefill can feed would wait"


def advice(shortfalls: list[float], usd_per_miss: float) -> WarmAdvice:
    """For replicas of ten requests a second and three dollars an hour."""
    return warm_replicas(
        shortfalls, interval_s=15.0, start_s=180.0, replica_rps=10.0, usd_per_hour=3.0, usd_per_miss=usd_per_miss
    )


def test_warm_replicas_are_kept_while_they_pay() -> None:
    often = [2.0 if index % 60 < 6 else 0.0 for index in range(960)]
    found = advice(often, usd_per_miss=0.01)
    assert (found.replicas, found.idle_usd_per_hour) == (2, 6.0)
    assert found.saved_misses_per_hour > 600
    assert advice(often, usd_per_miss=0.0).replicas == 0
    assert advice([], usd_per_miss=1.0).replicas == 0


def test_changes_a_minute_are_limited_in_each_direction_on_its_own() -> None:
    policy = ScalingPolicy(max_up_per_minute=3, max_down_per_minute=1)
    caps = stepped(Caps(), 2, 0.0)
    assert allowed(caps, 4, 10, 10.0, policy) == 5
    assert allowed(caps, 4, 1, 10.0, policy) == 3
    assert allowed(caps, 4, 10, 61.0, policy) == 7


def test_how_full_a_replica_may_run_falls_with_longer_requests_and_rises_with_more_replicas() -> None:
    short, long = RequestMix(500, 100), RequestMix(12_000, 100)
    assert fill_limit(COST, short, 4, 2.0) > fill_limit(COST, long, 4, 2.0)
    assert fill_limit(COST, long, 20, 4.0) > fill_limit(COST, long, 1, 4.0)


class Clock:
    """Linear step times."""

    def seconds(self, batch: Batch) -> float:
        """Fixed, tokens, context and pairs."""
        tokens = batch.decode_rows + batch.prefill_tokens
        return 1e-3 + tokens * 2e-5 + batch.decode_context * 5e-8 + batch.prefill_pairs * 1e-9

    def swap_seconds(self, tokens: int) -> float:
        """Unused."""
        return 0.0


def test_costs_are_read_off_the_step_model() -> None:
    cost = replica_cost(Clock(), 512)
    assert cost.token_s == pytest.approx(2e-5 + 1e-3 / 512)
    assert cost.kv_s == pytest.approx(5e-8)
    assert cost.pair_s == pytest.approx(1e-9, rel=1e-3)
    with pytest.raises(BadInputError):
        replica_cost(Clock(), 0)


def test_a_state_that_is_saved_and_read_goes_on_where_it_was() -> None:
    history = History(values=(1.0, 2.0), closed_at_s=95.0, ratios=(1.0, 1.1))
    state = PoolState(target=7, changed_at_s=60.0, busy_at_s=99.0, outlook=OutlookState(history=history))
    after = decode(encode(state, 100.0), 10.0, 32.0)
    assert after.target == 7
    assert after.changed_at_s == pytest.approx(10 - 32 - 40)
    assert after.outlook.history.values == (1.0, 2.0, 2.0, 2.0), "the stop is bridged by the last value"
    assert after.outlook.history.ratios == (1.0, 1.1)
    assert after.window == ((10.0, 7),), "a whole window is seen before anything is given up"


def test_a_long_stop_keeps_only_the_target_and_a_damaged_state_is_refused() -> None:
    document = encode(PoolState(target=7), 0.0)
    assert decode(document, 0.0, 1e6).outlook == OutlookState()
    for broken in ({}, document | {"schema": "x"}, document | {"target": "many"}, document | {"mix": [1]}):
        with pytest.raises(StateDocumentError):
            decode(broken, 0.0, 1.0)


TARGET = Target("Deployment", "llama", "tonnage-planner", frozenset({"ScaledObject/llama"}))


def deployment(replicas: int, manager: str = "", operation: str = "Apply") -> dict[str, object]:
    fields = [{"manager": manager, "operation": operation, "fieldsV1": {"f:spec": {"f:replicas": {}}}}]
    return {"metadata": {"name": "llama", "managedFields": fields if manager else []}, "spec": {"replicas": replicas}}


def scaler(kind: str, name: str, of: str = "llama", owner: str = "") -> dict[str, object]:
    owners = [{"kind": "ScaledObject", "name": owner}] if owner else []
    spec = {"scaleTargetRef": {"kind": "Deployment", "name": of}}
    return {"kind": kind, "metadata": {"name": name, "ownerReferences": owners}, "spec": spec}


@pytest.mark.parametrize(
    ("seen", "scalers", "writer"),
    [
        (deployment(3), [scaler("HorizontalPodAutoscaler", "rogue")], Writer.HPA),
        (deployment(3), [scaler("ScaledObject", "theirs")], Writer.SCALED_OBJECT),
        (deployment(3, "argocd-controller"), [], Writer.APPLY),
        (deployment(9), [], Writer.UNKNOWN),
    ],
)
def test_another_writer_is_named(seen: dict[str, object], scalers: list[dict[str, object]], writer: Writer) -> None:
    (found,) = conflicts(TARGET, seen, scalers, 3)
    assert found.writer is writer
    assert found.text


def test_what_is_its_own_or_for_another_target_is_no_conflict() -> None:
    others = [
        scaler("ScaledObject", "llama"),
        scaler("HorizontalPodAutoscaler", "keda-hpa-llama", owner="llama"),
        scaler("HorizontalPodAutoscaler", "x", of="other"),
    ]
    assert conflicts(TARGET, deployment(3, "tonnage-planner"), others, 3) == ()
    assert conflicts(TARGET, deployment(3, "kubectl-scale", "Update"), others, None) == ()


def test_a_scaled_object_that_was_there_before_the_scaler_is_seen() -> None:
    own = scaled_object(POOL, tolerance_served=True)
    cpu = {"spec": {"metrics": [{"type": "Resource", "resource": {"name": "cpu"}}]}}
    assert "delete the HPA" in str(bad_fallback(own, cpu))
    assert bad_fallback(own, {"spec": {"metrics": [{"type": "External"}]}}) is None
    assert bad_fallback(own, None) is None


POOL = ScaledPool("llama", "serving", 0, 24, scaler_address="planner.tonnage:8095")


def test_generated_objects_leave_no_window_and_no_tolerance_to_swallow_a_step() -> None:
    own = scaled_object(POOL, tolerance_served=True)
    for made in (own, horizontal_pod_autoscaler(POOL, tolerance_served=True)):
        spec = made["spec"]
        behaviour = spec.get("behavior") or spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        for direction in ("scaleUp", "scaleDown"):
            assert behaviour[direction]["stabilizationWindowSeconds"] == 0
            assert behaviour[direction]["tolerance"] == "0"
    assert own["spec"]["triggers"][0]["metadata"] == {"scalerAddress": "planner.tonnage:8095", "pool": "llama"}
    assert "tolerance" not in str(scaled_object(POOL, tolerance_served=False))
    with pytest.raises(BadInputError, match="address"):
        scaled_object(ScaledPool("a", "b", 0, 1), tolerance_served=True)


def test_a_large_pool_without_tolerance_is_written_directly() -> None:
    assert effective_mode("keda", POOL, tolerance_served=True) == ("keda", "")
    mode, why = effective_mode("hpa", POOL, tolerance_served=False)
    assert (mode, "10 %" in why) == ("direct", True)
    small = ScaledPool("a", "b", 0, 6, scaler_address="x:1")
    assert effective_mode("keda", small, tolerance_served=False) == ("keda", "")
    assert effective_mode("manual", POOL, tolerance_served=False) == ("manual", "")
