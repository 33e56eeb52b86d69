"""Addresses that nothing is fetched from, in every spelling."""

import pytest

from tonnage_core.addresses import refused_address, refused_literal


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.1.1",
        "fe80::1%eth0",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
        "0.0.0.0",
        "::",
        "224.0.0.1",
    ],
)
def test_addresses_that_hand_out_credentials_or_are_no_hosts_are_refused(address: str) -> None:
    assert refused_address(address) is not None


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.7", "93.184.216.34", "2001:db8::1", "64:ff9b::5db8:d822", "2002:5db8:d822::1"],
)
def test_other_addresses_are_taken(address: str) -> None:
    assert refused_address(address) is None


def test_a_name_is_not_judged_before_its_address_is_known() -> None:
    assert refused_literal("metadata.example") is None
    assert refused_literal("") is None
    assert refused_literal("169.254.169.254") is not None
