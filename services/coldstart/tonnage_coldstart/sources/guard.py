"""Where HTTP sources may lead: a service that fetches for its callers must not reach everything.

The address is judged when the connection stands and before a byte is sent, so that a name which answers differently the
second time gains nothing; every redirect passes here again.
"""

import ipaddress
from collections.abc import Sequence
from fnmatch import fnmatchcase

METADATA = frozenset(
    ipaddress.ip_address(one) for one in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16")
)
"""Where clouds hand out credentials (AWS, Google and Azure; AWS over IPv6; Alibaba; Azure's own host). No list opens
them."""


def refused_host(host: str, allowed: Sequence[str]) -> str | None:
    """Why a host, or a bucket, may not be asked; `allowed` are patterns, empty for any."""
    name = host.lower().rstrip(".")
    if allowed and not any(fnmatchcase(name, pattern.lower()) for pattern in allowed):
        return f"{name[:200]} is not among the hosts that sources may have"
    return None


def refused_address(address: str) -> str | None:
    """Why a connection to an address may not be used."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(ip, "ipv4_mapped", None)
    ip = mapped or ip
    if ip in METADATA or ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        return f"its address is {ip}: sources are not read from such addresses"
    return None
