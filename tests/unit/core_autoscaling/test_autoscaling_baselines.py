"""The baselines are given what a real cluster gives them."""

from tonnage_core.autoscaling.simulation.baselines import KpaPolicy, hpa_kv
from tonnage_core.autoscaling.simulation.view import PoolView, ReplicaGauges


def view(now_s: float, wanted: int, running: int = 0, kv: float = 0.0) -> PoolView:
    return PoolView(now_s, wanted, 0, 0, tuple(ReplicaGauges(running, 0, kv) for _ in range(wanted)))


def test_an_hpa_that_finds_an_idle_fleet_keeps_it_for_its_whole_window() -> None:
    policy = hpa_kv(0.1, 300.0)
    targets = [policy.target(view(now, 10)) for now in range(0, 331, 15)]
    assert set(targets[:20]) == {10}, "its first recommendation is what it found"
    assert targets[-1] < 10


def test_an_hpa_still_grows_at_once() -> None:
    assert hpa_kv(0.1, 300.0).target(view(0.0, 4, kv=0.2)) == 8


def test_knatives_autoscaler_gives_nothing_up_before_its_window_is_full() -> None:
    policy = KpaPolicy(10.0, 10.0)
    targets = [policy.target(view(now, 8)) for now in range(0, 71, 2)]
    assert set(targets[:30]) == {8}
    assert targets[-1] == 4
