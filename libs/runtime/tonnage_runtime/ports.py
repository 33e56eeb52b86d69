"""Free TCP ports for processes that are about to start.

A port that the kernel gives to a socket bound to 0 comes from the range it also gives to outgoing connections, so a
busy machine may hand it out again before the process that wants it binds it. These come from below that range.
"""

import random
import socket
from collections.abc import Iterator

LOW, HIGH = 15_000, 32_000
"""Above the registered services most machines run, below Linux' first ephemeral port (32768)."""


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` different ports of `host` nobody is bound to now. OSError when the range has no such port left."""
    ports = _unbound(host)
    try:
        return [next(ports) for _ in range(count)]
    except StopIteration:
        raise OSError(f"no free port on {host} between {LOW} and {HIGH}") from None


def free_port(host: str = "127.0.0.1") -> int:
    """One such port."""
    return free_ports(1, host)[0]


def _unbound(host: str) -> Iterator[int]:
    candidates = random.SystemRandom().sample(range(LOW, HIGH), HIGH - LOW)
    for port in candidates:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((host, port))
            except OSError:
                continue
        yield port
