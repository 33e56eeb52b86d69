"""Reports between replicas: gauges that expire, totals of which a lost one costs nothing, quotas that even out."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tonnage_core.flow_control.peers import FORGET_S, MAX_PEERS, Load, Peers, Report, Use
from tonnage_core.flow_control.tenants import Grant, Refusal, TenantAccount, TenantSpec


def used(replica: str, tokens: int, requests: int = 0, held: int = 0) -> Report:
    return Report(replica, uses={"t": Use(tokens, requests, held)})


def test_loads_of_replicas_add_up_and_a_silent_ones_are_dropped() -> None:
    peers = Peers(expire_s=3)
    peers.take(Report("a", {"e": Load(1, 10, 100)}), now=0)
    peers.take(Report("b", {"e": Load(2, 20, 200), "f": Load(1, 1, 1)}), now=2)
    assert peers.loads(now=2) == {"e": Load(3, 30, 300), "f": Load(1, 1, 1)}
    assert peers.loads(now=4) == {"e": Load(2, 20, 200), "f": Load(1, 1, 1)}
    assert peers.loads(now=6) == {} and peers.count(now=6) == 0


def test_a_newer_report_replaces_the_older_one() -> None:
    peers = Peers(expire_s=3)
    peers.take(Report("a", {"e": Load(1, 10, 100)}), now=0)
    peers.take(Report("a", {}), now=1)
    assert peers.loads(now=1) == {}


def test_the_first_report_is_a_baseline_and_later_ones_are_charged_by_their_difference() -> None:
    peers = Peers(expire_s=3)
    assert peers.take(used("a", 5000, 9), now=0) == {}
    assert peers.take(used("a", 5600, 11), now=1) == {"t": Use(600, 2)}
    assert peers.take(used("a", 5600, 11, held=7), now=2) == {}
    assert peers.held(now=2) == {"t": 7}
    assert peers.take(used("a", 5500, 11), now=3) == {"t": Use(-100, 0)}


def test_a_report_after_an_outage_carries_what_the_lost_ones_said() -> None:
    peers = Peers(expire_s=3)
    peers.take(used("a", 0), now=0)
    peers.expire(now=1000)
    assert peers.take(used("a", 900), now=1000) == {"t": Use(900, 0)}
    peers.expire(now=2000 + FORGET_S)
    assert peers.take(used("a", 950), now=2000 + FORGET_S) == {}


def test_replicas_are_bounded() -> None:
    peers = Peers(expire_s=3)
    for number in range(2 * MAX_PEERS):
        peers.take(used(str(number), 1), now=0)
    assert peers.count(now=0) == MAX_PEERS


def test_what_peers_hold_counts_towards_the_concurrent_limit() -> None:
    account = TenantAccount(TenantSpec("t", concurrent_tokens=100))
    account.peer_held_tokens = 60
    assert isinstance(account.admit(50, now=0), Refusal)
    assert isinstance(account.admit(40, now=0), Grant)


def test_one_charge_is_at_most_a_full_bucket() -> None:
    account = TenantAccount(TenantSpec("t", tokens_per_min=600, requests_per_s=2))
    account.charge_peers(10**9, 10**9, now=0)
    found = account.admit(1, now=60)
    assert isinstance(found, Grant)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 400), st.integers(0, 800), st.booleans()), max_size=60))
def test_two_replicas_balances_are_equal_once_all_reports_came(
    events: list[tuple[int, int, int, bool]],
) -> None:
    """However reports are lost in between: the running totals carry everything. No time passes, so that no refill and
    no clamp at a full bucket hides a difference."""
    accounts = [TenantAccount(TenantSpec("t", tokens_per_min=10_000_000)) for _ in range(2)]
    peers = [Peers(expire_s=3), Peers(expire_s=3)]
    for of in range(2):
        accounts[of].charge_peers(5_000_000, 0, now=0)  # room below the full bucket

    def tell(one: int) -> None:
        report = used(str(one), accounts[one].taken_tokens, accounts[one].taken_requests)
        for use in peers[1 - one].take(report, now=0).values():
            accounts[1 - one].charge_peers(use.tokens, use.requests, now=0)

    tell(0)
    tell(1)
    for one, reserved, real, told in events:
        grant = accounts[one].admit(reserved, now=0)
        assert isinstance(grant, Grant)
        grant.settle(real, now=0)
        if told:
            tell(one)
    tell(0)
    tell(1)
    balances = [account._tokens.balance for account in accounts if account._tokens is not None]
    assert balances[0] == balances[1]
    assert sum(a.used_tokens for a in accounts) == 5_000_000 - balances[0]


def test_a_reports_use_is_of_its_own_replica_only() -> None:
    rng, peers = Random(7), Peers(expire_s=3)
    totals = {"a": 0, "b": 0}
    charged = 0
    for name in totals:
        peers.take(used(name, 0), now=0)
    for step in range(200):
        name = rng.choice(["a", "b"])
        totals[name] += rng.randrange(100)
        charged += sum(use.tokens for use in peers.take(used(name, totals[name]), now=step).values())
    assert charged == sum(totals.values())
