"""Who is at the other end of a connection to an engine."""

import asyncio

from tonnage_core.addresses import refused_address


def refused_peer(transport: asyncio.BaseTransport) -> str | None:
    """Why nothing may be sent on a new connection: engines are found by lists and names that others write."""
    peer = transport.get_extra_info("peername")
    return refused_address(str(peer[0])) if peer else "the connection was closed at once"
