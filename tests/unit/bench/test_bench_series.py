"""The series' rule and the leases' rule: pure, and safe under any order of deaths and repeats."""

from hypothesis import given
from hypothesis import strategies as st

from tonnage_core.benchmarking.capacity import SearchSettings
from tonnage_core.benchmarking.leases import LeaseRules, StepAction, StepView, step_action
from tonnage_core.benchmarking.series import Ask, Made, Series, capacity_found, most_runs, next_ask, sure_asks

RULES = LeaseRules(lease_s=10, resend_s=5, attempts=3)


def played(series: Series, capacity: float) -> list[Made]:
    made: list[Made] = []
    while (ask := next_ask(series, made)) is not None:
        made.append(Made(ask, None if ask.rate is None else ask.rate <= capacity))
    return made


def test_the_stages_follow_each_other_and_each_run_has_a_seed_of_its_own() -> None:
    series = Series(SearchSettings(4, 0.05), (1.0, 2.0), (1, 8), gate=True, seed=7)
    made = played(series, 10)
    kinds = [each.ask.kind for each in made]
    assert kinds == sorted(kinds, key=["search", "rate", "users", "gate"].index)
    assert [each.ask.number for each in made] == list(range(len(made)))
    assert len({each.ask.seed for each in made}) == len(made)
    found = capacity_found(series, made)
    assert found is not None
    assert found.capacity is not None
    assert 10 / 1.05 <= found.capacity <= 10
    assert len(made) <= most_runs(series)


def test_without_a_stage_there_is_one_run_with_the_seed_given() -> None:
    assert [each.ask for each in played(Series(seed=3), 1)] == [Ask(0, "once", None, None, 3, "one run")]
    assert [each.ask.kind for each in played(Series(gate=True), 1)] == ["once", "gate"]


def test_a_run_that_nobody_claimed_is_sent_again_and_one_whose_worker_is_gone_gets_the_next_attempt() -> None:
    waiting = StepView(False, 1, None, None)
    assert step_action(waiting, 100, RULES) is StepAction.SEND
    assert step_action(StepView(False, 1, 98, None), 100, RULES) is StepAction.WAIT
    assert step_action(StepView(False, 1, 95, None), 100, RULES) is StepAction.SEND
    assert step_action(StepView(True, 1, 90, 101), 100, RULES) is StepAction.WAIT
    assert step_action(StepView(True, 2, 90, 100), 100, RULES) is StepAction.RETRY
    assert step_action(StepView(True, 3, 90, 100), 100, RULES) is StepAction.GIVE_UP


def test_a_clock_that_went_back_neither_stops_sending_nor_ends_a_claim() -> None:
    assert step_action(StepView(False, 1, 5000, None), 100, RULES) is StepAction.SEND
    assert step_action(StepView(True, 1, 5000, 5010), 100, RULES) is StepAction.WAIT


@given(st.lists(st.floats(0, 30), min_size=1, max_size=30), st.booleans())
def test_a_claim_is_never_taken_while_its_lease_holds(waits: list[float], claimed: bool) -> None:
    now = 0.0
    until = 10.0
    for wait in waits:
        now += wait
        action = step_action(StepView(claimed, 1, 0.0, until if claimed else None), now, RULES)
        if claimed:
            assert (action is StepAction.WAIT) == (now < until)
        else:
            assert action in (StepAction.WAIT, StepAction.SEND)


def test_the_runs_that_are_known_before_any_is_made() -> None:
    search = SearchSettings(4.0, 0.05, 12, 2)
    series = Series(search, (1.0, 2.0), (8,), gate=True, seed=3)
    asks = sure_asks(series)
    assert [(ask.kind, ask.rate, ask.users) for ask in asks] == [
        ("search", 4.0, None), ("rate", 1.0, None), ("rate", 2.0, None), ("users", None, 8), ("gate", None, None),
    ]  # fmt: skip
    assert [ask.kind for ask in sure_asks(Series())] == ["once"]
    assert [ask.kind for ask in sure_asks(Series(search))] == ["search"]
    assert sure_asks(Series())[0] == next_ask(Series(), ())
