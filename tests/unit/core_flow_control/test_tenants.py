import pytest

from tonnage_core.flow_control.drain_rate import DrainRate
from tonnage_core.flow_control.tenants import Grant, Limit, Refusal, TenantAccount, TenantSpec
from tonnage_core.flow_control.token_bucket import TokenBucket


def granted(found: Grant | Refusal) -> Grant:
    assert isinstance(found, Grant)
    return found


def refused(found: Grant | Refusal) -> Refusal:
    assert isinstance(found, Refusal)
    return found


def test_a_bucket_says_truly_when_to_come_back() -> None:
    bucket = TokenBucket(rate=10, burst=20)
    bucket.take(20, 0)
    wait = bucket.wait_s(5, 0)
    assert wait == pytest.approx(0.5)
    assert bucket.wait_s(5, wait) == 0


def test_a_request_over_the_burst_needs_only_a_full_bucket() -> None:
    bucket = TokenBucket(rate=10, burst=20)
    assert bucket.wait_s(100, 0) == 0
    bucket.take(100, 0)
    assert bucket.wait_s(1, 0) == pytest.approx(8.1)


def test_requests_a_second_are_bounded() -> None:
    account = TenantAccount(TenantSpec("a", requests_per_s=2))
    assert [isinstance(account.admit(1, 0.0), Grant) for _ in range(3)] == [True, True, False]
    assert refused(account.admit(1, 0.0)) == Refusal(Limit.REQUESTS, 0.5)
    granted(account.admit(1, 0.5))


def test_the_estimate_is_settled_with_real_usage() -> None:
    account = TenantAccount(TenantSpec("a", tokens_per_min=600))
    granted(account.admit(500, 0)).settle(100, 0)
    granted(account.admit(500, 0)).settle(550, 0)
    assert account.used_tokens == 650
    assert refused(account.admit(10, 0)).limit is Limit.TOKENS
    assert refused(account.admit(10, 0)).retry_after_s == pytest.approx(6.0)


def test_settling_twice_counts_once() -> None:
    account = TenantAccount(TenantSpec("a", concurrent_tokens=100))
    grant = granted(account.admit(60, 0))
    grant.settle(10, 0)
    grant.settle(10, 0)
    assert (account.held_tokens, account.used_tokens) == (0, 10)


def test_concurrent_tokens_bound_what_is_in_flight() -> None:
    account = TenantAccount(TenantSpec("a", concurrent_tokens=100))
    grant = granted(account.admit(60, 0))
    assert refused(account.admit(60, 0)).limit is Limit.CONCURRENT
    assert refused(account.admit(101, 0)).retry_after_s is None
    grant.settle(None, 0)
    granted(account.admit(60, 0))


def test_a_refused_request_costs_nothing() -> None:
    account = TenantAccount(TenantSpec("a", requests_per_s=1, tokens_per_min=60))
    granted(account.admit(60, 0))
    for _ in range(10):
        refused(account.admit(60, 0.5))
    assert account.held_tokens == 60
    granted(account.admit(60, 60.0))


def test_models_are_names_or_patterns() -> None:
    spec = TenantSpec("a", models=("llama-8b", "lora-*"))
    assert [spec.allows(m) for m in ("llama-8b", "lora-x", "llama-70b")] == [True, True, False]


def test_settled_use_follows_the_limit_within_one_percent() -> None:
    account, now = TenantAccount(TenantSpec("a", tokens_per_min=60_000)), 0.0
    for step in range(20_000):
        now = step * 0.03
        found = account.admit(1000, now)
        if isinstance(found, Grant):
            found.settle(700, now)
    allowed = 60_000 + now * 1000  # the first burst, then the rate
    assert account.used_tokens == pytest.approx(allowed, rel=0.01)


def test_retry_after_follows_the_rate_at_which_the_queue_drains() -> None:
    drain = DrainRate()
    assert drain.retry_after_s(1000, 30) == 30
    drain.begin(0.0)
    for tick in range(1, 1000):
        drain.left(100, tick * 0.1)
    assert drain.rate == pytest.approx(1000, rel=0.1)
    assert drain.retry_after_s(5000, 30) == pytest.approx(5, abs=1)
    assert drain.retry_after_s(10**9, 30) == 30
    assert drain.retry_after_s(0, 30) == 1


def test_a_queue_that_has_just_begun_to_drain_is_not_taken_for_a_slow_one() -> None:
    drain = DrainRate()
    drain.begin(5.0)
    drain.left(100, 5.05)
    assert drain.rate == 0
    drain.left(100, 5.2)
    assert drain.rate == pytest.approx(1000)
    drain.left(50, 5.4)
    assert 250 < drain.rate < 1000


def test_time_in_which_nothing_waits_says_nothing_of_a_queues_rate() -> None:
    drain = DrainRate()
    drain.begin(0.0)
    drain.left(1000, 1.0)
    drain.begin(500.0)
    drain.left(1000, 501.0)
    assert drain.rate == pytest.approx(1000)
