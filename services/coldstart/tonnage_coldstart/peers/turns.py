"""One download a fleet: who holds the lease fetches from the source, the others wait for it and fetch from it."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from tonnage_coldstart.errors import CancelledError
from tonnage_coldstart.peers.registry import PeerRegistry
from tonnage_coldstart.peers.shared_store import SharedStore
from tonnage_coldstart.peers.source import PeerSource, manifest_of
from tonnage_coldstart.snapshot import Snapshot, Source
from tonnage_coldstart.sources.http_client import HttpClient
from tonnage_runtime.access import SharedToken
from tonnage_runtime.store import Lease, StoreError

log = logging.getLogger("tonnage.coldstart.peers")
POLL_S = 0.2


class FleetTurns:
    """The fleet's side of staging. Without the store each node fetches for itself, and that is logged and counted."""

    def __init__(
        self,
        store: SharedStore,
        registry: PeerRegistry,
        *,
        token: SharedToken,
        lease_ttl_s: float,
        timeout_s: float,
        ca_file: str | None = None,
        tls_name: str = "",
        on_alone: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._token = token
        self._lease_ttl_s = lease_ttl_s
        self._timeout_s = timeout_s
        self._ca_file = ca_file
        self._tls_name = tls_name
        self._on_alone = on_alone

    @contextlib.contextmanager
    def source_for(self, source: Source, snapshot: Snapshot, stop: threading.Event) -> Iterator[Source]:
        """The source to fetch `snapshot` from, now that it is this node's turn.

        Yields the origin to the holder of the lease, else a `PeerSource`. Raises `CancelledError` when stopped.
        """
        with contextlib.ExitStack() as stack:
            try:
                chosen = self._wait(source, snapshot, stop, stack)
            except StoreError as error:
                log.warning("fetching without the fleet", extra={"key": snapshot.key, "error": str(error)})
                self._on_alone()
                chosen = source
            yield chosen

    def published(self, key: str) -> None:
        """Tell the fleet that this node has a snapshot now."""
        try:
            self._registry.announce(key)
        except StoreError as error:
            log.warning("the fleet was not told", extra={"key": key, "error": str(error)})

    def withdrawn(self, key: str) -> None:
        """Tell the fleet that this node has a snapshot no more."""
        with contextlib.suppress(StoreError):
            self._registry.withdraw(key)

    def _wait(self, source: Source, snapshot: Snapshot, stop: threading.Event, stack: contextlib.ExitStack) -> Source:
        while not stop.is_set():
            peers = self._peers(source, snapshot, stack)
            if peers is not None:
                return peers
            lease = self._store.acquire(_name(snapshot.key), self._registry.node, ttl_s=self._lease_ttl_s)
            if lease is not None:
                stack.callback(self._give_up, lease)
                stack.enter_context(self._renewed(lease))
                # Between the look at the peers and the lease another node may have finished.
                return self._peers(source, snapshot, stack) or source
            stop.wait(POLL_S)
        raise CancelledError("stopped while another node fetched the same snapshot")

    def _peers(self, source: Source, snapshot: Snapshot, stack: contextlib.ExitStack) -> PeerSource | None:
        peers = self._registry.peers(snapshot.key)
        client = HttpClient(timeout_s=self._timeout_s, ca_file=self._ca_file, tls_name=self._tls_name)
        for number, peer in enumerate(peers):
            manifest = manifest_of(peer, snapshot, client, self._token.value())
            if manifest is not None:
                made = PeerSource(source, snapshot, peers[number:], manifest, client, self._token.value())
                stack.callback(made.close)
                return made
        client.close()
        return None

    @contextlib.contextmanager
    def _renewed(self, lease: Lease) -> Iterator[None]:
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(self._lease_ttl_s / 3):
                try:
                    if not self._store.renew(lease, ttl_s=self._lease_ttl_s):
                        log.warning("the lease went to another node", extra={"lease": lease.name})
                        return
                except StoreError as error:
                    log.warning("the lease was not renewed", extra={"lease": lease.name, "error": str(error)})

        thread = threading.Thread(target=renew, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _give_up(self, lease: Lease) -> None:
        with contextlib.suppress(StoreError):
            self._store.release(lease)


def _name(key: str) -> str:
    return f"coldstart:stage:{key}"
