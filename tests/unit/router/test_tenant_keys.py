"""Who a key belongs to, across a reload of the tenants file."""

import hashlib

from tonnage_core.flow_control.tenants import TenantSpec
from tonnage_router import tenants
from tonnage_router.tenants import TenantKeys, Tenants


def keys(name: str, *own: bytes) -> TenantKeys:
    return TenantKeys(TenantSpec(name), tuple(hashlib.sha256(key).hexdigest() for key in own))


def test_a_key_that_a_reload_takes_away_is_nobodys_at_once() -> None:
    known = Tenants()
    known.load([keys("a", b"one", b"two")], None)
    for _ in range(2):
        assert known.identify(b"Bearer one") is known.identify(b"bearer  one ") is known.accounts["a"]
    known.load([keys("a", b"two"), keys("b", b"three")], None)
    assert known.identify(b"Bearer one") is known.identify(b"bearer  one ") is None
    assert known.identify(b"Bearer two") is known.accounts["a"]


def test_spellings_of_a_key_do_not_gather_without_bound() -> None:
    known = Tenants()
    known.load([keys("a", b"one")], None)
    for spaces in range(tenants.SEEN + 10):
        assert known.identify(b"Bearer one" + b" " * spaces) is not None
        assert known.identify(b"Bearer wrong" + b" " * spaces) is None
        assert known.identify(b"Bearer " + b" " * (tenants.SEEN_BYTES + spaces) + b"one") is not None
    assert len(known._seen) <= tenants.SEEN
    assert max(map(len, known._seen)) <= tenants.SEEN_BYTES
