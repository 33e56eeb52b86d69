"""The endpoint under load: its URL taken apart once, so that a request is bytes to an address."""

import asyncio
import socket
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from tonnage_core.addresses import refused_address
from tonnage_loadgen.errors import TargetError

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect and what to write before a path; `prefix` is the URL's path without a trailing /v1."""

    host: str
    port: int
    prefix: str
    tls: bool

    @property
    def authority(self) -> str:
        """host:port as the Host header has it; IPv6 in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The base URL."""
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"

    def ssl_context(self) -> ssl.SSLContext | None:
        """Default verification for https, None for http."""
        return ssl.create_default_context() if self.tls else None


async def address_of(target: Target) -> str:
    """The numeric address, looked up once: no name service in the load, and connections go to the address that was
    judged. Of several the first that takes a connection (`localhost` is two). Raises `TargetError` for a name without
    one, and for an address that nothing is fetched from."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise TargetError(f"{target.host}: the name cannot be resolved: {error.strerror}") from error
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
    for address in addresses:
        if (why := refused_address(address)) is not None:
            raise TargetError(f"{target.host}: {why}")
    for address in addresses[:-1]:
        try:
            _, writer = await asyncio.open_connection(address, target.port)
        except OSError:
            continue
        writer.close()
        return address
    return addresses[-1]


def parse_target(url: str) -> Target:
    """`http://host[:port][/prefix][/v1]` as a `Target`; raises `TargetError` in one line for anything else."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise TargetError(f"{url!r} is not a URL: {error}; write it like http://127.0.0.1:8000") from error
    if parts.scheme not in DEFAULT_PORTS or not host:
        raise TargetError(f"{url!r} is not an http or https URL; write it like http://127.0.0.1:8000")
    if parts.query or parts.fragment or parts.username is not None:
        raise TargetError(f"{url!r}: a base URL has no query, fragment or user; write it like http://127.0.0.1:8000")
    path = parts.path.rstrip("/").removesuffix("/v1")
    if not (path + host).isascii() or any(c.isspace() or ord(c) < 32 for c in path + host):
        raise TargetError(f"{url!r}: only ASCII without spaces can stand in a base URL")
    return Target(host, port or DEFAULT_PORTS[parts.scheme], path, parts.scheme == "https")
