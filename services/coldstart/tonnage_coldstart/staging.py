"""Staging: one snapshot from its source into the node cache, whole and verified, or not at all."""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Protocol

from tonnage_coldstart.cache.scrub import Damage, reopen, scrub
from tonnage_coldstart.cache.store import Cached, NodeCache
from tonnage_coldstart.cache.transfer import Transfer
from tonnage_coldstart.errors import CacheReadOnlyError, CancelledError, DiskFullError, TransientSourceError
from tonnage_coldstart.fetch.gate import Pacer
from tonnage_coldstart.fetch.workers import Fetch, FetchOptions
from tonnage_coldstart.manifest import Manifest, ManifestFile
from tonnage_coldstart.peers.source import PeerSource
from tonnage_coldstart.progress import Progress
from tonnage_coldstart.snapshot import Snapshot, Source
from tonnage_coldstart.verification import read_header
from tonnage_core.coldstart.brake import backoff_s
from tonnage_core.coldstart.snapshot import require_agreement
from tonnage_runtime.clock import Clock

log = logging.getLogger("tonnage.coldstart")


@dataclass(frozen=True, slots=True)
class Staged:
    """What staging did. Times in seconds; `h2d_s` is None, as nothing goes to a device."""

    key: str
    path: Path
    bytes: int
    source_bytes: int
    resumed_bytes: int
    cache_hit: bool
    verified_by: str
    """`source-digests`: every byte against checksums the source publishes; `transfer`: those taken as it came."""
    revision: str
    retries: int
    seconds: float
    phases: dict[str, float | None]
    repaired: tuple[str, ...] = ()
    """Files in which damage was found and fetched again."""
    peer_bytes: int = 0
    """Bytes that other nodes delivered; not in `source_bytes`."""
    ended_at: float | None = None
    """Unix seconds."""


class Fleet(Protocol):
    """The other nodes, as staging sees them."""

    def source_for(
        self, source: Source, snapshot: Snapshot, stop: threading.Event
    ) -> contextlib.AbstractContextManager[Source]:
        """Wait for this node's turn; the source to fetch from then."""
        ...

    def published(self, key: str) -> None:
        """The snapshot is in this node's cache now."""
        ...


class Alone:
    """A node without others."""

    def source_for(
        self, source: Source, snapshot: Snapshot, stop: threading.Event
    ) -> contextlib.AbstractContextManager[Source]:
        """The source itself, at once."""
        return contextlib.nullcontext(source)

    def published(self, key: str) -> None:
        """Nobody is told."""


@dataclass
class Stager:
    """Stages into one cache; safe to call from several threads and processes at once."""

    cache: NodeCache
    clock: Clock
    options: FetchOptions = field(default_factory=FetchOptions)
    rng: Random = field(default_factory=lambda: Random(0))
    fleet: Fleet = field(default_factory=Alone)

    def __post_init__(self) -> None:
        """All transfers share the cap on bytes a second."""
        self._pacer = Pacer(self.options.bytes_per_s, self.clock.monotonic)

    def stage(
        self,
        source: Source,
        progress: Progress,
        stop: threading.Event,
        *,
        verify: bool = False,
        pin: bool = False,
    ) -> Staged:
        """Stage what `source` offers. `verify` reads a snapshot that is already there again, byte by byte.

        Raises `TonnageError`: of the source, the cache, the quota, or `CancelledError`; what was fetched is kept for
        the next try, except when the disk is full.
        """
        staged = self._staged(source, progress, stop, verify=verify, pin=pin)
        return replace(staged, ended_at=self.clock.wall())

    def _staged(self, source: Source, progress: Progress, stop: threading.Event, *, verify: bool, pin: bool) -> Staged:
        stopwatch = _Stopwatch(self.clock.monotonic)
        snapshot = self._listed(source, progress, stop)
        progress.expect(snapshot.size_bytes, len(snapshot.files))
        stopwatch.lap("plan_s")
        flight = self.cache.single_flight(snapshot.key, stop, on_wait=lambda: progress.enter("wait"))
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(flight)
            except CacheReadOnlyError:
                staged = self._read_only_hit(snapshot, progress, stopwatch)
                if staged is None:
                    raise
                return staged
            cached, damage = self._look(snapshot.key, verify)
            stopwatch.lap("verify_s")
            if cached is not None and not damage:
                staged = self._hit(cached, progress, stopwatch)
            else:
                staged = self._fetch(source, snapshot, cached, damage, progress, stop, stopwatch)
            if pin:
                self.cache.pin(snapshot.key, pinned=True)
        progress.enter("done")
        return staged

    def _listed(self, source: Source, progress: Progress, stop: threading.Event) -> Snapshot:
        """The source's listing; a failure that passes is tried again, like that of a range."""
        for attempt in range(self.options.attempts):
            try:
                return source.snapshot()
            except TransientSourceError:
                if attempt + 1 == self.options.attempts:
                    raise
            progress.retried()
            if stop.wait(backoff_s(attempt, self.rng, self.options.first_backoff_s)):
                break
        raise CancelledError("stopped while the source was listed")

    def _look(self, key: str, verify: bool) -> tuple[Cached | None, list[Damage]]:
        """What the cache has, and what of it is damaged: all files are read with `verify`, else those that changed."""
        cached = self.cache.find(key)
        if cached is None:
            return None, []
        damage = scrub(cached, names=None if verify else cached.suspects)
        return cached, damage

    def _hit(self, cached: Cached, progress: Progress, stopwatch: "_Stopwatch") -> Staged:
        self.cache.touch(cached.key)
        progress.resumed(cached.manifest.size_bytes)
        return _staged(cached.key, cached.path, cached.manifest, progress, stopwatch, cache_hit=True)

    def _read_only_hit(self, snapshot: Snapshot, progress: Progress, stopwatch: "_Stopwatch") -> Staged | None:
        """A snapshot that lies whole in a cache that cannot be written is still a hit."""
        cached, damage = self._look(snapshot.key, verify=False)
        if cached is None or damage:
            return None
        staged = self._hit(cached, progress, stopwatch)
        progress.enter("done")
        return staged

    def _fetch(
        self,
        source: Source,
        snapshot: Snapshot,
        cached: Cached | None,
        damage: list[Damage],
        progress: Progress,
        stop: threading.Event,
        stopwatch: "_Stopwatch",
    ) -> Staged:
        key = snapshot.key
        self.cache.admit(key, snapshot)
        transfer = Transfer(self.cache.layout.transfer(key), snapshot, drop_behind=self.options.drop_behind)
        if cached is not None:
            log.warning("damaged snapshot", extra={"key": key, "files": [one.name for one in damage]})
            self.cache.withdraw(key, transfer.tree)
        if cached is not None and cached.manifest.chunk_bytes == snapshot.chunk_bytes:
            reopen(self.cache.layout, cached, damage, {file.name: n for n, file in enumerate(snapshot.files)})
        try:
            transfer.open()
            progress.resumed(transfer.resumed_bytes)
            stopwatch.lap("verify_s")
            progress.enter("wait")
            with self.fleet.source_for(source, snapshot, stop) as chosen:
                progress.enter("fetch")
                self._run(chosen, transfer, progress, stop)
                stopwatch.lap("fetch_s")
                progress.enter("verify")
                _require_agreement(snapshot, transfer.tree)
                manifest = self._manifest(snapshot, transfer)
                path = self.cache.publish(key, transfer.tree, manifest)
                self.fleet.published(key)
                stopwatch.lap("verify_s")
        except DiskFullError:
            transfer.remove()
            raise
        finally:
            transfer.close()
        repaired = tuple(one.name for one in damage)
        staged = _staged(key, path, manifest, progress, stopwatch, cache_hit=False, repaired=repaired)
        peer_bytes = chosen.peer_bytes if isinstance(chosen, PeerSource) else 0
        return replace(staged, source_bytes=staged.source_bytes - peer_bytes, peer_bytes=peer_bytes)

    def _run(self, source: Source, transfer: Transfer, progress: Progress, stop: threading.Event) -> None:
        now, pacer = self.clock.monotonic, self._pacer
        Fetch(source, transfer, self.options, progress, stop, rng=self.rng, monotonic=now, pacer=pacer).run()

    def _manifest(self, snapshot: Snapshot, transfer: Transfer) -> Manifest:
        files = []
        for number, file in enumerate(snapshot.files):
            path = transfer.tree / file.name
            files.append(
                ManifestFile(
                    name=file.name,
                    size=file.size_bytes,
                    sha256=file.sha256,
                    crc32c=transfer.checksums[number],
                    version=file.version,
                    mtime_ns=path.stat().st_mtime_ns,
                )
            )
        return Manifest(
            uri=snapshot.uri,
            label=snapshot.label,
            revision=snapshot.revision,
            created_at=datetime.fromtimestamp(self.clock.wall(), UTC).isoformat(timespec="seconds"),
            chunk_bytes=snapshot.chunk_bytes,
            source_digests=all(file.sha256 is not None or file.chunk_crcs is not None for file in snapshot.files),
            files=tuple(files),
        )


class _Stopwatch:
    """Adds the time since the last lap to a phase."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.started_s = self._last_s = monotonic()
        self.phases: dict[str, float | None] = {"plan_s": 0.0, "fetch_s": 0.0, "verify_s": 0.0, "h2d_s": None}

    def lap(self, phase: str) -> None:
        """The time since the last lap belongs to `phase`."""
        now = self._monotonic()
        self.phases[phase] = (self.phases[phase] or 0.0) + now - self._last_s
        self._last_s = now

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return self._monotonic() - self.started_s


def _staged(
    key: str,
    path: Path,
    manifest: Manifest,
    progress: Progress,
    stopwatch: _Stopwatch,
    *,
    cache_hit: bool,
    repaired: tuple[str, ...] = (),
) -> Staged:
    standing = progress.standing()
    return Staged(
        key=key,
        path=path,
        bytes=manifest.size_bytes,
        source_bytes=standing.source_bytes,
        resumed_bytes=0 if cache_hit else standing.resumed_bytes,
        cache_hit=cache_hit,
        verified_by="source-digests" if manifest.source_digests else "transfer",
        revision=manifest.revision,
        retries=standing.retries,
        seconds=stopwatch.seconds,
        phases=dict(stopwatch.phases),
        repaired=repaired,
    )


def _require_agreement(snapshot: Snapshot, tree: Path) -> None:
    """Every tensor of the index lies in the shard the index names."""
    if snapshot.weight_map:
        shards = sorted(set(snapshot.weight_map.values()))
        held = {shard: [tensor.name for tensor in read_header(tree / shard, shard).tensors] for shard in shards}
        require_agreement(snapshot.weight_map, held)
