"""The capacity search: near the truth, in few runs, honest when it cannot be."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tonnage_core.benchmarking.accuracy_gate import gate
from tonnage_core.benchmarking.capacity import Found, SearchSettings, Trial, Try, next_move
from tonnage_core.errors import BadInputError


def search(capacity: float, asked: SearchSettings, flaky: Random | None = None) -> tuple[Found, list[Trial]]:
    trials: list[Trial] = []
    while isinstance(step := next_move(trials, asked), Try):
        at = capacity * (1 if flaky is None else flaky.uniform(0.99, 1.01))
        trials.append(Trial(step.rate, step.rate <= at))
    return step, trials


@settings(max_examples=200, deadline=None)
@given(st.floats(0.1, 1000), st.floats(0.3, 3.0))
def test_the_capacity_is_bracketed_within_the_tolerance_in_under_twelve_runs(truth: float, guess: float) -> None:
    found, trials = search(truth, SearchSettings(truth * guess, most_runs=11))
    assert found.complete
    assert found.capacity is not None
    assert found.failing is not None
    assert found.capacity <= truth < found.failing <= found.capacity * 1.0501
    assert len(trials) <= 11


def test_both_ends_are_repeated() -> None:
    found, trials = search(10.0, SearchSettings(8.0, repeats=2, most_runs=20))
    assert found.complete
    rates = [trial.rate for trial in trials]
    assert rates.count(found.capacity or 0) == 2
    assert rates.count(found.failing or 0) == 2


def test_runs_that_disagree_do_not_loop_for_ever() -> None:
    found, trials = search(10.0, SearchSettings(8.0, repeats=2, most_runs=30), Random(3))
    assert len(trials) <= 30
    assert found.capacity == pytest.approx(10.0, rel=0.08)


def test_a_spent_budget_says_so_and_keeps_the_bracket() -> None:
    found, _ = search(100.0, SearchSettings(1.0, most_runs=3))
    assert not found.complete
    assert (found.capacity, found.failing) == (4.0, None)
    assert "3 runs are spent" in found.reason


def test_a_rate_that_never_passes_is_said_plainly() -> None:
    found, _ = search(0.0, SearchSettings(1.0, lowest=0.1, most_runs=20))
    assert found == Found(None, 0.1, True, "not even the lowest rate meets the SLO")


def test_a_void_run_is_repeated_once_and_then_ends_the_search() -> None:
    asked = SearchSettings(4.0)
    assert next_move([Trial(4.0, None)], asked) == Try(4.0, "the last run was void")
    found = next_move([Trial(4.0, True), Trial(8.0, None), Trial(8.0, None)], asked)
    assert isinstance(found, Found)
    assert (found.capacity, found.complete) == (4.0, False)
    assert "generator" in found.reason


def test_a_search_that_cannot_end_is_refused() -> None:
    for given_settings in ({"start": 0.0}, {"start": 1.0, "tolerance": 0.0}, {"start": 1.0, "most_runs": 0}):
        with pytest.raises(BadInputError):
            SearchSettings(**given_settings)  # type: ignore[arg-type]


def test_the_gate_fails_a_real_loss_and_passes_noise() -> None:
    right = [True] * 90 + [False] * 10
    assert gate(right, right).passed
    worse = [False] * 8 + [True] * 82 + [False] * 10
    assert not gate(right, worse).passed
    assert "fell" in gate(right, worse).reason
    swapped = [False, True, *right[2:-1], True]
    assert gate(right, swapped, allowed_drop=0.01).passed
    small_but_real = [False] * 6 + [True] * 994
    assert "real loss" in gate([True] * 1000, small_but_real, allowed_drop=0.01).reason


def test_the_gate_refuses_what_does_not_pair_up() -> None:
    for pair in (([], []), ([True], [True, False])):
        with pytest.raises(BadInputError, match="same tasks"):
            gate(*pair)
