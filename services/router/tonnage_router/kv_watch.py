"""A follower for each endpoint that publishes KV events. ZeroMQ is imported with the first one."""

from typing import TYPE_CHECKING

from tonnage_core.errors import BadInputError

if TYPE_CHECKING:
    import zmq

    from tonnage_router.fleet import Endpoint
    from tonnage_router.gateway import Gateway


class KvWatch:
    """Endpoints that join are followed; one that leaves closes its follower itself."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    def follow(self) -> None:
        """Start following new endpoints."""
        for endpoint in self._gateway.fleet:
            if endpoint.spec.kv_events_port is not None and endpoint.follower is None:
                self._start(endpoint)
        self._gateway.prompts.block_sizes_changed()

    def _start(self, endpoint: "Endpoint") -> None:
        try:
            import zmq

            from tonnage_router.kv_follower import KvFollower
        except ImportError as error:
            raise BadInputError("kv_events_port needs the router extra: pip install 'tonnage[router]'") from error
        self._context = self._context or zmq.Context()
        endpoint.follower = KvFollower(self._gateway, endpoint, self._context)

    def stop(self) -> None:
        """Close all sockets."""
        for endpoint in self._gateway.fleet:
            if endpoint.follower is not None:
                endpoint.follower.close()
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None
