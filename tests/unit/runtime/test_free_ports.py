"""Free ports are different, unbound, and below the range outgoing connections use."""

import socket

import pytest

from tonnage_runtime import ports


def test_they_differ_and_lie_below_the_ephemeral_range() -> None:
    found = ports.free_ports(40)
    assert len(set(found)) == 40
    assert all(ports.LOW <= port < ports.HIGH < 32_768 for port in found)


def test_a_bound_port_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", ports.free_port())) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "LOW", port)
        monkeypatch.setattr(ports, "HIGH", port + 1)
        with pytest.raises(OSError, match=r"no free port on 127\.0\.0\.1"):
            ports.free_port()
