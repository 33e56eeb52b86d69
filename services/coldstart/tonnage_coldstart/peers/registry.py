"""Which nodes have which snapshot: one short document a snapshot in the fleet's store, each entry with its end."""

import logging
from collections.abc import Callable
from random import Random

from tonnage_coldstart.peers.shared_store import SharedStore
from tonnage_core.coldstart.peers import Peer, announced, nearest, parse_peers, withdrawn
from tonnage_runtime.clock import Clock

log = logging.getLogger("tonnage.coldstart.peers")
TRIES = 20


class PeerRegistry:
    """This node's side: `node` is its name, `url` where others reach it, `place` its zone and rack."""

    def __init__(
        self, store: SharedStore, clock: Clock, *, node: str, url: str, place: str, ttl_s: float, rng: Random
    ) -> None:
        self._store = store
        self._clock = clock
        self.node = node
        self._url = url
        self._place = place
        self._ttl_s = ttl_s
        self._rng = rng

    def peers(self, key: str) -> tuple[Peer, ...]:
        """The other nodes that have a snapshot, nearest first. Raises `StoreError`."""
        found = parse_peers(self._store.get(_name(key)))
        return nearest(found, self.node, self._place, self._clock.wall(), self._rng)

    def announce(self, key: str) -> bool:
        """Tell that this node has a snapshot, for the next `ttl_s`. Raises `StoreError`."""
        now = self._clock.wall()
        own = Peer(self.node, self._url, self._place, now + self._ttl_s)
        return self._change(key, lambda raw: announced(raw, own, now))

    def withdraw(self, key: str) -> bool:
        """Tell that this node has it no more. Raises `StoreError`."""
        now = self._clock.wall()
        return self._change(key, lambda raw: withdrawn(raw, self.node, now))

    def _change(self, key: str, change: Callable[[bytes | None], bytes]) -> bool:
        for _ in range(TRIES):
            raw = self._store.get(_name(key))
            if self._store.compare_and_set(_name(key), raw, change(raw), ttl_s=self._ttl_s * 2):
                return True
        log.warning("the list of peers changed under every try", extra={"key": key})
        return False


def _name(key: str) -> str:
    return f"coldstart:peers:{key}"
