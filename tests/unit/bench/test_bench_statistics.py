"""The statistics of a run against queues whose answer is known."""

import math
from collections.abc import Callable
from random import Random

import pytest

from tonnage_core.benchmarking.arrivals import Arrivals, schedule
from tonnage_core.benchmarking.capacity import SearchSettings, Trial, Try, next_move
from tonnage_core.benchmarking.known_queues import closed_sojourns, md1_percentile, sojourns
from tonnage_core.benchmarking.statistics import (
    interval_of,
    more_needed,
    needed_for,
    steadiness,
    warmup_end,
)
from tonnage_core.queueing import mg1_wait, mm1_percentile
from tonnage_core.slo import percentile

RUNS = 100


def one_run(seed: int, load: float, requests: int, *, exponential: bool) -> list[float]:
    """Times in system at a server of 1 s a request in the mean, after a start long enough to be forgotten."""
    rng = Random(seed)
    arrivals = schedule(Arrivals("poisson", load), requests * 1.2 / load, rng)
    services = [rng.expovariate(1.0) if exponential else 1.0 for _ in arrivals]
    return sojourns(arrivals, services)[requests // 10 :][:requests]


@pytest.mark.parametrize(("load", "requests"), [(0.5, 2500), (0.8, 16_000)])
@pytest.mark.parametrize("exponential", [True, False], ids=["M/M/1", "M/D/1"])
def test_known_percentiles_lie_inside_their_intervals(load: float, requests: int, *, exponential: bool) -> None:
    formula: Callable[[float, float, float], float] = mm1_percentile if exponential else md1_percentile
    truth = {percent: formula(1.0, load, percent) for percent in (50.0, 90.0, 99.0)}
    inside = dict.fromkeys(truth, 0)
    for seed in range(RUNS):
        values = one_run(seed, load, requests, exponential=exponential)
        for percent in inside:
            found = interval_of(values, percent)
            assert found is not None
            inside[percent] += found.holds(truth[percent])
    assert min(inside.values()) >= 85, inside


def test_the_exact_md1_distribution_has_the_mean_of_pollaczek_and_khinchine() -> None:
    load, steps = 0.8, 400
    mean = sum(md1_percentile(1.0, load, 100 * (n + 0.5) / steps) for n in range(steps)) / steps
    assert mean == pytest.approx(1 + mg1_wait(1.0, 0.0, load), rel=0.01)


def test_a_closed_loop_hides_the_tail_that_the_same_server_has() -> None:
    rng, load = Random(11), 0.6
    open_loop = sorted(one_run(3, load, 20_000, exponential=True))
    users = 2
    closed = closed_sojourns(users, [rng.expovariate(1.0) for _ in range(20_000)], think_s=0.5)
    truth = mm1_percentile(1.0, load, 99)
    seen, hidden = percentile(open_loop, 99), percentile(sorted(closed), 99)
    assert seen is not None
    assert hidden is not None
    assert seen == pytest.approx(truth, rel=0.25), "a long open run is near the formula"
    assert hidden < 0.7 * truth, "two users never queue behind more than one another"


def test_a_server_that_stalls_for_a_second_shows_in_the_p99() -> None:
    arrivals = schedule(Arrivals("poisson", 50.0), 60.0, Random(5))
    smooth = sojourns(arrivals, [0.002] * len(arrivals))
    stalled, free = [], 0.0
    for at in arrivals:
        start = max(at, free)
        start = 31.0 if 30.0 <= start < 31.0 else start
        free = start + 0.002
        stalled.append(free - at)
    before, after = interval_of(smooth, 99), interval_of(stalled, 99)
    assert before is not None
    assert after is not None
    assert before.value < 0.02
    assert after.value > 0.3


def test_a_percentile_says_how_many_requests_it_needs() -> None:
    assert (needed_for(99), needed_for(99.9), needed_for(50)) == (368, 3688, 6)
    assert more_needed(None, 0, 99) == 368
    short = interval_of([Random(1).random() for _ in range(100)], 99)
    assert short is not None
    assert short.high is None
    assert more_needed(short, 100, 99) >= 268
    rng = Random(2)
    enough = interval_of([rng.random() for _ in range(4000)], 99)
    assert enough is not None
    assert enough.high is not None
    assert more_needed(enough, 4000, 99) == 0


def test_requests_that_go_together_count_for_fewer() -> None:
    rng = Random(3)
    alone = [rng.random() for _ in range(3200)]
    together = [value for value in alone[:160] for _ in range(20)]
    one, other = interval_of(alone, 50), interval_of(together, 50)
    assert one is not None
    assert other is not None
    assert other.effective < one.effective / 5


def test_no_value_has_no_interval() -> None:
    assert interval_of([], 99) is None


def test_a_slow_start_is_found_and_nothing_else_is() -> None:
    rng = Random(8)
    steady = [1 + 0.1 * rng.random() for _ in range(1000)]
    cold = [5 * math.exp(-n / 20) for n in range(100)]
    found = warmup_end([c + s for c, s in zip(cold, steady, strict=False)] + steady)
    assert found is not None
    assert 40 <= found <= 140
    kept = warmup_end(steady)
    assert kept is not None
    assert kept <= 300
    assert warmup_end([1.0] * 8) == 0


def test_a_run_that_never_settles_has_no_warm_up_to_drop() -> None:
    assert (
        warmup_end([math.exp(n / 50) for n in range(600)][::-1]) is None
        or not steadiness([math.exp(-n / 200) for n in range(600)]).steady
    )


def test_a_growing_queue_is_not_steady_and_a_stable_one_is() -> None:
    rng = Random(4)
    arrivals = schedule(Arrivals("poisson", 1.3), 1500.0, rng)
    overload = sojourns(arrivals, [1.0] * len(arrivals))
    assert not steadiness(overload).steady
    assert "grew" in steadiness(overload).reason
    assert steadiness(one_run(1, 0.5, 3000, exponential=True)).steady
    assert not steadiness([1.0] * 10).steady
    assert steadiness([2.0] * 100).steady


def test_the_capacity_of_a_known_queue_is_found_within_5_percent_in_under_12_runs() -> None:
    limit = mm1_percentile(1.0, 0.8, 99)
    search, trials = SearchSettings(0.3, tolerance=0.04, most_runs=11, highest=0.99), list[Trial]()
    while isinstance(move := next_move(trials, search), Try):
        rng = Random(100 + len(trials))
        arrivals = schedule(Arrivals("poisson", move.rate), 60_000 / move.rate, rng)
        found = interval_of(sojourns(arrivals, [rng.expovariate(1.0) for _ in arrivals]), 99)
        assert found is not None
        trials.append(Trial(move.rate, found.value <= limit))
    assert move.complete
    assert move.capacity == pytest.approx(0.8, rel=0.05)
    assert len(trials) < 12
