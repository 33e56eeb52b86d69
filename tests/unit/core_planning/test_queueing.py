"""Queue formulas against drawn queues and against each other."""

from random import Random

import pytest

from tonnage_core import cost, queueing
from tonnage_core.errors import BadInputError


def _waits(rate: float, service: float, servers: int, count: int, seed: int, *, fixed: bool = False) -> list[float]:
    """Waits of a drawn first-come queue with Poisson arrivals."""
    rng, free, now, waits = Random(seed), [0.0] * servers, 0.0, []
    for _ in range(count):
        now += rng.expovariate(rate)
        first = min(range(servers), key=free.__getitem__)
        start = max(now, free[first])
        free[first] = start + (service if fixed else rng.expovariate(1 / service))
        waits.append(start - now)
    return waits


def test_mm1_and_mmc_waits_agree_with_drawn_queues() -> None:
    for servers in (1, 4):
        waits = sorted(_waits(0.8 * servers, 1.0, servers, 100_000, 7))
        mean = sum(waits) / len(waits)
        assert queueing.mmc_wait(1.0, servers, 0.8 * servers) == pytest.approx(mean, rel=0.12)
        p95 = waits[int(0.95 * len(waits))]
        assert queueing.mmc_wait_percentile(1.0, servers, 0.8 * servers, 95) == pytest.approx(p95, rel=0.15)


def test_fixed_service_halves_the_wait_of_mg1() -> None:
    waits = _waits(0.8, 1.0, 1, 60_000, 3, fixed=True)
    assert queueing.mg1_wait(1.0, 0.0, 0.8) == pytest.approx(sum(waits) / len(waits), rel=0.05)
    assert queueing.mg1_wait(1.0, 0.0, 0.8) == pytest.approx(queueing.mg1_wait(1.0, 1.0, 0.8) / 2)


def test_mm1_is_mg1_and_mmc_with_one_server() -> None:
    assert queueing.mm1_time(2.0, 0.7) == pytest.approx(2.0 + queueing.mg1_wait(2.0, 1.0, 0.7))
    assert queueing.mmc_wait(2.0, 1, 0.7) == pytest.approx(queueing.mg1_wait(2.0, 1.0, 0.7))
    assert queueing.erlang_c(1, 0.7) == pytest.approx(0.7)
    mean = queueing.mg1_wait(2.0, 1.0, 0.7)
    assert queueing.wait_percentile(mean, 0.7, 99) == pytest.approx(queueing.mmc_wait_percentile(2.0, 1, 0.7, 99))


def test_the_percentile_of_time_in_system_is_exponential() -> None:
    assert queueing.mm1_percentile(1.0, 0.5, 99) == pytest.approx(2 * 4.605, rel=1e-3)
    assert queueing.wait_percentile(1.0, 0.5, 40) == 0.0


def test_constant_arrivals_of_constant_work_never_wait() -> None:
    assert queueing.gg1_wait(1.0, 0.0, 0.0, 0.95) == 0.0


def test_the_fewest_servers_for_a_wait_limit_meet_it_and_one_fewer_does_not() -> None:
    found = queueing.servers_for(2.0, 10.0, 0.5, 99)
    assert found is not None
    assert queueing.mmc_wait_percentile(2.0, found, 20.0, 99) <= 0.5
    assert queueing.mmc_wait_percentile(2.0, found - 1, 20.0, 99) > 0.5
    assert queueing.servers_for(2.0, 10.0, 0.5, 99, most=20) is None


@pytest.mark.parametrize("load", [1.0, 1.5, -0.1, float("nan")])
def test_a_queue_that_only_grows_is_refused(load: float) -> None:
    with pytest.raises(BadInputError, match="utilisation is"):
        queueing.stretch(load)


def test_nothing_served_has_no_price() -> None:
    for price in (cost.usd_per_million_tokens, cost.usd_per_thousand_requests):
        with pytest.raises(BadInputError, match="give a load above 0"):
            price(3.0, 0.0)
    assert cost.usd_per_thousand_requests(3.6, 1.0) == pytest.approx(1.0)
    assert cost.break_even_share(1.0, 3.0, 100, 400) == pytest.approx(0.75)
