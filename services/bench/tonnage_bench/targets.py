"""Which endpoints jobs may be pointed at: a service that sends requests for its callers must not reach everything."""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from tonnage_bench.errors import TargetRefusedError
from tonnage_core.addresses import refused_address
from tonnage_runtime.access import SharedToken


def host_of(url: str) -> tuple[str, str]:
    """(host, host:port) of an http URL, lower case, IPv6 without brackets in the first. Raises `TargetRefusedError`."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise TargetRefusedError(f"{url[:200]!r} is not a URL; write it like http://router:8000") from error
    if parts.scheme not in ("http", "https") or not host or parts.username is not None:
        raise TargetRefusedError(f"{url[:200]!r} is not an http or https URL; write it like http://router:8000")
    port = port or (443 if parts.scheme == "https" else 80)
    return host.lower(), f"[{host}]:{port}".lower() if ":" in host else f"{host}:{port}".lower()


def key_for(url: str, keys: Mapping[str, SharedToken]) -> str | None:
    """The target's bearer token now: that of host:port before that of the host."""
    host, place = host_of(url)
    found = keys.get(place, keys.get(host))
    return None if found is None else found.value()


async def check_target(url: str, allowed: Sequence[str]) -> None:
    """Raises `TargetRefusedError` unless the host is among `allowed`, or for an address nothing is fetched from, which
    no pattern opens.
    """
    host, place = host_of(url)
    if not any(fnmatchcase(name, pattern.lower()) for pattern in allowed for name in (host, place)):
        raise TargetRefusedError(f"{host[:200]} is not among the service's targets; TONNAGE_BENCH_TARGETS lists them")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise TargetRefusedError(f"{host[:200]} has no address: {error}") from error
    for *_, address in found:
        if (why := refused_address(str(address[0]))) is not None:
            raise TargetRefusedError(f"{host[:200]}: {why}")
