from tonnage_core.flow_control.breaker import Breaker, BreakerState
from tonnage_core.flow_control.retry_budget import RetryBudget


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker(faults=3, wait_s=1.0, max_wait_s=4.0)
    for _ in range(3):
        breaker.fault(at)
    return breaker


def test_faults_in_a_row_open_it() -> None:
    breaker = Breaker(faults=3)
    breaker.fault(0)
    breaker.fault(0)
    breaker.success()
    breaker.fault(0)
    breaker.fault(0)
    assert breaker.allows(0)
    breaker.fault(0)
    assert breaker.state(0) is BreakerState.OPEN
    assert not breaker.allows(0.9)


def test_back_pressure_never_opens_it() -> None:
    breaker = Breaker(faults=3)
    for _ in range(100):
        breaker.neutral()
    assert breaker.closed


def test_a_fault_that_was_the_requests_own_counts_no_more() -> None:
    breaker = opened()
    breaker.pardon()
    assert breaker.closed and breaker.allows(0)
    breaker.fault(0)
    assert not breaker.closed  # the others stand
    breaker.success()
    breaker.pardon()
    breaker.fault(0)
    breaker.fault(0)
    assert breaker.closed


def test_after_the_wait_one_probe_at_a_time_passes() -> None:
    breaker = opened()
    assert breaker.state(1.0) is BreakerState.HALF_OPEN
    assert breaker.allows(1.0)
    breaker.sent(1.0)
    assert not breaker.allows(1.1)


def test_a_good_probe_closes_it_and_a_bad_one_doubles_the_wait() -> None:
    breaker = opened()
    breaker.sent(1.0)
    breaker.fault(1.1)
    assert not breaker.allows(2.9)
    assert breaker.allows(3.2)
    breaker.sent(3.2)
    breaker.success()
    assert breaker.closed and breaker.allows(3.2)


def test_a_probe_without_a_verdict_gives_its_place_back() -> None:
    breaker = opened()
    breaker.sent(1.0)
    breaker.neutral()
    assert breaker.allows(1.1)


def test_another_request_without_a_verdict_does_not_free_the_probes_place() -> None:
    breaker, before, probe = opened(), object(), object()
    breaker.sent(1.0, probe)
    breaker.neutral(before)
    assert not breaker.allows(1.1)
    breaker.neutral(probe)
    assert breaker.allows(1.1)


def test_a_probe_that_never_ends_loses_its_place() -> None:
    breaker = opened()
    breaker.sent(1.0)
    assert breaker.allows(2.0)


def test_what_failed_with_those_that_opened_it_makes_the_wait_no_longer() -> None:
    breaker = opened()
    for _ in range(60):
        breaker.fault(0.1)
    assert breaker.allows(1.0)
    breaker.sent(1.0)
    breaker.fault(1.1)
    assert not breaker.allows(3.0) and breaker.allows(3.2)


def test_a_pardoned_probe_neither_closes_it_nor_makes_anybody_wait() -> None:
    breaker = opened()
    breaker.sent(1.0)
    for _ in range(5):
        breaker.fault(1.1)
        breaker.pardon()
        assert not breaker.closed and breaker.allows(1.1)
        breaker.sent(1.1)
        assert not breaker.allows(1.2), "one at a time"
    breaker.fault(1.2)
    assert not breaker.allows(3.1) and breaker.allows(3.3), "twice the first wait"


def test_the_wait_is_bounded() -> None:
    breaker = opened()
    for at in range(10):
        breaker.fault(at * 40.0)
    assert not breaker.allows(360.0 + 3.9) and breaker.allows(360.0 + 4.0)


def test_retries_are_a_share_of_requests_over_a_floor() -> None:
    budget = RetryBudget(ratio=0.1, cap=5)
    assert [budget.take() for _ in range(6)] == [True] * 5 + [False]
    for _ in range(11):
        budget.request()
    assert budget.take()
    assert not budget.take()
