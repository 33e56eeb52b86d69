"""Joining the fleet from the settings: the store, the registry, the turns, and the heartbeat that keeps us listed."""

import logging
import threading
from random import Random

from tonnage_coldstart.cache.store import NodeCache
from tonnage_coldstart.errors import CacheError
from tonnage_coldstart.metrics import ColdstartMetrics
from tonnage_coldstart.peers.registry import PeerRegistry
from tonnage_coldstart.peers.shared_store import SharedStore
from tonnage_coldstart.peers.turns import FleetTurns
from tonnage_coldstart.settings import ColdstartSettings
from tonnage_core.errors import BadInputError
from tonnage_runtime.access import SharedToken
from tonnage_runtime.clock import Clock
from tonnage_runtime.store import Store

log = logging.getLogger("tonnage.coldstart.peers")


class Membership:
    """This node in the fleet; `turns` is what staging asks."""

    def __init__(
        self, settings: ColdstartSettings, store: Store, cache: NodeCache, clock: Clock, metrics: ColdstartMetrics
    ) -> None:
        self._shared = SharedStore(store)
        registry = PeerRegistry(
            self._shared,
            clock,
            node=settings.node,
            url=settings.advertise_url.rstrip("/"),
            place=settings.place,
            ttl_s=settings.peer_ttl_s,
            rng=Random(settings.node),
        )
        self.turns = FleetTurns(
            self._shared,
            registry,
            token=SharedToken(settings.peer_token),
            lease_ttl_s=settings.lease_ttl_s,
            timeout_s=settings.timeout_s,
            ca_file=settings.ca_file,
            tls_name=settings.peer_tls_name,
            on_alone=metrics.alone.inc,
        )
        self._cache = cache
        self._interval_s = settings.peer_ttl_s / 3
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="peers", daemon=True)

    def start(self) -> None:
        """Announce what the cache holds, now and again."""
        self._thread.start()

    def close(self) -> None:
        """Leave: other nodes stop asking us."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for key in self._keys():
            self.turns.withdrawn(key)
        self._shared.close()

    def _beat(self) -> None:
        while True:
            for key in self._keys():
                self.turns.published(key)
            if self._stop.wait(self._interval_s):
                return

    def _keys(self) -> list[str]:
        try:
            return [cached.key for cached in self._cache.entries()]
        except CacheError as error:
            log.warning("the cache cannot be listed", extra={"error": str(error)})
            return []


def check_membership(settings: ColdstartSettings) -> bool:
    """Whether this node joins a fleet. Raises `BadInputError` for half of what that takes."""
    given = {
        "store_url": settings.store_url,
        "peer_token": settings.peer_token,
        "advertise_url": settings.advertise_url,
    }
    missing = sorted(name for name, value in given.items() if not value)
    if len(missing) == len(given):
        return False
    if missing:
        raise BadInputError(f"peers need {', '.join(sorted(given))}; not set: {', '.join(missing)}")
    if not settings.advertise_url.startswith(("http://", "https://")):
        raise BadInputError(f"advertise_url {settings.advertise_url!r}: write http://host:port")
    return True
