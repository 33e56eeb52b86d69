"""One of several operators acts: the lease is held, taken over when it is stale, and given back."""

from collections.abc import Callable
from typing import Any

import pytest

from tonnage_operator.leader import Leader, LeaseRules
from tonnage_runtime.clock import ManualClock
from tonnage_runtime.kube import KubeConflictError, KubeNotFoundError, KubeUnreachableError


class Leases:
    """The one lease of a server."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.down = False
        self.version = 0

    def get(self, resource: Any, name: str) -> dict[str, Any]:
        if self.down:
            raise KubeUnreachableError("no answer")
        if self.lease is None:
            raise KubeNotFoundError("no lease")
        return self.lease

    def create(self, resource: Any, body: dict[str, Any], *, manager: str) -> dict[str, Any]:
        if self.lease is not None:
            raise KubeConflictError("exists")
        return self.write(body)

    def replace(self, resource: Any, name: str, body: dict[str, Any], *, manager: str) -> dict[str, Any]:
        assert self.lease is not None
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise KubeConflictError("changed")
        return self.write(body)

    def write(self, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return self.lease


class Renewed:
    """The same lease, changed by someone after each look."""

    def __init__(self, server: Leases, get: Callable[[Any, str], dict[str, Any]]) -> None:
        self.get, self.replace = get, server.replace


def two() -> tuple[Leases, ManualClock, Leader, Leader]:
    server, clock = Leases(), ManualClock()
    made = [Leader(server, LeaseRules(identity=name), clock) for name in ("one", "two")]  # type: ignore[arg-type]
    return server, clock, made[0], made[1]


def pass_time(clock: ManualClock, seconds: float, *leaders: Leader) -> None:
    for _ in range(int(seconds)):
        clock.advance(1.0)
        for leader in leaders:
            leader.step()


def test_the_first_leads_and_the_other_waits() -> None:
    _, clock, one, two_ = two()
    one.step()
    pass_time(clock, 60, one, two_)
    assert one.held()
    assert not two_.held()


def test_a_leader_that_is_gone_is_replaced_and_never_acts_beside_its_successor() -> None:
    _, clock, one, other = two()
    one.step()
    for _ in range(40):
        clock.advance(1.0)
        other.step()
        assert not (one.held() and other.held())
    assert other.held()
    one.step()
    assert not one.held()


def test_a_leader_that_cannot_renew_stops_before_another_can_start() -> None:
    server, clock, one, _ = two()
    one.step()
    server.down = True
    pass_time(clock, 10, one)
    assert one.held()
    pass_time(clock, 2, one)
    assert not one.held()


def test_a_lost_race_is_no_lead() -> None:
    server, clock, one, other = two()
    one.step()
    pass_time(clock, 20, other)
    assert other.held() or server.lease is not None
    holders = [leader for leader in (one, other) if leader.held()]
    assert len(holders) <= 1


def test_a_release_takes_the_lease_from_whoever_holds_it_for_its_own_time() -> None:
    server, clock, one, other = two()
    rules = LeaseRules(identity="release", lasts_s=120.0)
    job = Leader(server, rules, clock)  # type: ignore[arg-type]
    assert not job.seize(), "nobody acts"
    assert server.lease is None
    one.step()
    pass_time(clock, 10, one, other)
    assert job.seize()
    one.step()
    assert not one.held()
    pass_time(clock, 119, one, other)
    assert not one.held()
    assert not other.held()
    pass_time(clock, 10, one, other)
    assert one.held() or other.held(), "a release that was given up ends by itself"


def test_a_lease_that_is_renewed_meanwhile_is_taken_all_the_same() -> None:
    server, clock, one, _ = two()
    one.step()
    get, turns = server.get, iter(range(100))

    def renewed_in_between(resource: Any, name: str) -> dict[str, Any]:
        found = get(resource, name)
        if next(turns) < 3:
            server.write(found)
        return found

    taken = Leader(Renewed(server, renewed_in_between), LeaseRules(identity="release"), clock)  # type: ignore[arg-type]
    assert taken.seize()
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == "release"
    turns = iter([0] * 1000)
    with pytest.raises(KubeConflictError, match="faster than it can be taken"):
        Leader(Renewed(server, renewed_in_between), LeaseRules(identity="x"), clock).seize()  # type: ignore[arg-type]


def test_a_renewal_counts_from_when_it_was_asked_for() -> None:
    server, clock, one, _ = two()
    get = server.get

    def slow(resource: Any, name: str) -> dict[str, Any]:
        clock.advance(8.0)
        return get(resource, name)

    late = Leader(Renewed(server, slow), LeaseRules(identity="one"), clock)  # type: ignore[arg-type]
    one.step()
    late.step()
    clock.advance(2.9)
    assert late.held()
    clock.advance(0.2)
    assert not late.held(), "15 s less a renewal of 4 s, 8 s of which the answer took"
