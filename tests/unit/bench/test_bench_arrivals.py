"""Arrival processes have the rate and the burstiness asked for, and one seed gives one schedule."""

from itertools import pairwise
from random import Random
from statistics import fmean, pstdev

import pytest

from tonnage_core.benchmarking.arrivals import Arrivals, scaled, schedule
from tonnage_core.errors import BadInputError


def gaps(times: list[float]) -> list[float]:
    return [b - a for a, b in zip([0.0, *times], times, strict=False)]


def autocorrelation(values: list[float]) -> float:
    mean = fmean(values)
    over = sum((a - mean) * (b - mean) for a, b in pairwise(values))
    return over / sum((value - mean) ** 2 for value in values)


@pytest.mark.parametrize(("kind", "cv"), [("poisson", 1.0), ("gamma", 0.4), ("gamma", 1.0), ("gamma", 3.0)])
def test_gaps_have_the_mean_and_the_variation_asked_for_and_do_not_repeat(kind: str, cv: float) -> None:
    found = gaps(schedule(Arrivals(kind, 50.0, cv), 600.0, Random(7)))
    assert fmean(found) == pytest.approx(0.02, rel=0.06)
    assert pstdev(found) / fmean(found) == pytest.approx(cv, rel=0.06)
    assert abs(autocorrelation(found)) < 0.03


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert schedule(Arrivals("constant", 4.0), 1.1, Random(1)) == [0.25, 0.5, 0.75, 1.0]


def test_a_ramp_goes_from_one_rate_to_the_other() -> None:
    times = schedule(Arrivals("ramp", 10.0, end_rate=90.0), 1000.0, Random(3))
    tenth = [sum(100 * n <= at < 100 * (n + 1) for at in times) / 100 for n in range(10)]
    assert tenth == pytest.approx([14 + 8 * n for n in range(10)], rel=0.1)
    falling = schedule(Arrivals("ramp", 90.0, end_rate=10.0), 100.0, Random(3))
    assert falling == sorted(falling)
    assert 0 <= falling[0] < falling[-1] < 100


def test_one_seed_gives_one_schedule_and_another_another() -> None:
    poisson = Arrivals("poisson", 20.0)
    assert schedule(poisson, 10.0, Random(1)) == schedule(poisson, 10.0, Random(1))
    assert schedule(poisson, 10.0, Random(1)) != schedule(poisson, 10.0, Random(2))


def test_a_trace_is_sped_up_by_its_rate_scale() -> None:
    assert scaled([5.0, 6.0, 9.0], 2.0) == [0.0, 0.5, 2.0]
    with pytest.raises(BadInputError, match="rate scale"):
        scaled([1.0], 0.0)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kind": "weibull"}, "choose one of"),
        ({"rate": 0.0}, "more than 0"),
        ({"rate": float("nan")}, "more than 0"),
        ({"kind": "gamma", "cv": 0.0}, "cv"),
        ({"kind": "ramp"}, "end rate"),
        ({"end_rate": 3.0}, "end rate"),
        ({"kind": "ramp", "end_rate": -1.0}, "end rate"),
    ],
)
def test_a_process_that_cannot_be_drawn_is_refused(given: dict[str, float], says: str) -> None:
    with pytest.raises(BadInputError, match=says):
        Arrivals(**given)  # type: ignore[arg-type]


def test_a_schedule_too_long_to_hold_is_refused() -> None:
    with pytest.raises(BadInputError, match="too many"):
        schedule(Arrivals("poisson", 1e6), 1e4, Random(1))
    with pytest.raises(BadInputError, match="a load of"):
        schedule(Arrivals("poisson", 1.0), 0.0, Random(1))
