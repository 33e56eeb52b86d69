"""Which hosts HTTP sources may name: a service that fetches for its callers must not reach everything.

Every redirect passes here again; addresses are judged by `tonnage_core.addresses` when the connection stands.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase


def refused_host(host: str, allowed: Sequence[str]) -> str | None:
    """Why a host, or a bucket, may not be asked; `allowed` are patterns, empty for any."""
    name = host.lower().rstrip(".")
    if allowed and not any(fnmatchcase(name, pattern.lower()) for pattern in allowed):
        return f"{name[:200]} is not among the hosts that sources may have"
    return None
