"""What one worker of a router is told by an admin, told to the others: a drain is the router's, not one process's."""

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from tonnage_router.fleet import Fleet

log = logging.getLogger(__name__)

LARGEST = 64 << 10


class WorkerChannel:
    """One worker's end: datagrams between processes that one parent has forked, over sockets that nobody else has."""

    def __init__(self, own: socket.socket, others: list[socket.socket]) -> None:
        self._own = own
        self._others = others
        for sock in (own, *others):
            sock.setblocking(False)

    def start(self, fleet: "Fleet") -> None:
        """Do from now on what others tell, on the running loop."""
        asyncio.get_running_loop().add_reader(self._own.fileno(), self._heard, fleet)

    def stop(self) -> None:
        """Listen no more."""
        asyncio.get_running_loop().remove_reader(self._own.fileno())

    def drain(self, endpoint_id: str, *, undo: bool) -> None:
        """Tell the others that an admin drains an endpoint, or ends that."""
        said = orjson.dumps({"endpoint": endpoint_id, "undo": undo})
        for other in self._others:
            try:
                other.send(said)
            except OSError as error:
                log.error("a drain did not reach a worker", extra={"endpoint": endpoint_id, "problem": str(error)})

    def _heard(self, fleet: "Fleet") -> None:
        try:
            told = orjson.loads(self._own.recv(LARGEST))
        except BlockingIOError:
            return
        endpoint = fleet.by_id.get(told["endpoint"])
        if endpoint is None:
            log.warning("told to drain an endpoint that is not known here", extra={"endpoint": told["endpoint"]})
        else:
            (fleet.undrain if told["undo"] else fleet.drain)(endpoint)


def channels(workers: int) -> list[WorkerChannel]:
    """The ends of so many workers, for each to take its own after the fork."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(workers)]
    return [
        WorkerChannel(pairs[number][0], [sender for other, (_, sender) in enumerate(pairs) if other != number])
        for number in range(workers)
    ]
