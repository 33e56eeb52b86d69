"""Addresses that nothing is fetched from, whatever name, list or redirect led there; names that are none."""

import ipaddress

METADATA = frozenset(
    ipaddress.ip_address(one) for one in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16")
)
"""Where clouds hand out credentials (AWS, Google and Azure; AWS over IPv6; Alibaba; Azure's own host)."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def refused_address(address: str) -> str | None:
    """Why a connection to an IP address may not be used, or None; ValueError for what is no address.

    Judge the address of a connection that stands, before a byte is sent: a name may answer differently the second time.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    ip = _carried(ip)
    if ip in METADATA or ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        return f"its address is {ip}: nothing is fetched from metadata, link-local, multicast or unspecified addresses"
    return None


def resolvable(host: str) -> bool:
    """Whether a resolver can be asked for it: an empty label, or one of over 63 bytes, would end whoever tried."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _carried(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address that an IPv6 one stands for (mapped, NAT64 of RFC 6052, 6to4 of RFC 3056), else itself."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or ip


def refused_literal(host: str) -> str | None:
    """Why a host written as an IP address may not be asked; None for names, whose addresses are not known yet."""
    try:
        return refused_address(host)
    except ValueError:
        return None
