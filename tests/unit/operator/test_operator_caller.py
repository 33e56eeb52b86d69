"""Calls to pods by address: not to those that hand out credentials."""

import pytest

from tonnage_operator.adapters.http import Caller, CallError


@pytest.mark.parametrize("host", ["169.254.169.254", "[fd00:ec2::254]", "[::ffff:169.254.169.254]", "0.0.0.0"])
def test_a_pod_address_that_nothing_is_fetched_from_is_not_called(host: str) -> None:
    with pytest.raises(CallError, match="nothing is fetched from"):
        Caller(timeout_s=0.01).text("GET", f"http://{host}:8000/metrics")
