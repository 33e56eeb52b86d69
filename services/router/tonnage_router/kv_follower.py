"""Each engine's KV events, followed into the exact index; the candidates say whether they are told."""

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import zmq

from tonnage_core.prefix_index.event_sync import Apply, Effect, EventSync, Note, Reset
from tonnage_core.prefix_index.kv_events import KvView, Outcome
from tonnage_router.adapters.kv_codec import decode
from tonnage_router.adapters.zmq_events import EventSockets
from tonnage_router.errors import KvEventError

if TYPE_CHECKING:
    from tonnage_router.fleet import Endpoint
    from tonnage_router.gateway import Gateway

log = logging.getLogger(__name__)

REPLAY_TIMEOUT_S = 5.0
"""Longest silence during a replay; vLLM looks for requests every 0.1 s."""


class KvFollower:
    """One endpoint's stream: sockets in, candidate and exact index out. Part of the event loop, like its sockets."""

    def __init__(self, gateway: "Gateway", endpoint: "Endpoint", context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        settings, spec, slot = gateway.settings, endpoint.spec, endpoint.candidate.slot
        self._gateway = gateway
        self._endpoint = endpoint
        self._view = KvView(gateway.scheduler.exact, slot, settings.kv_events_bytes_per_endpoint)
        self._sync: EventSync[bytes] = EventSync(self._noted, replays=spec.kv_events_replay_port is not None)
        self._timer: asyncio.TimerHandle | None = None
        rank = spec.data_parallel_rank or 0
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        replay = None if spec.kv_events_replay_port is None else f"tcp://{host}:{spec.kv_events_replay_port + rank}"
        self._sockets = EventSockets(
            context,
            f"tcp://{host}:{(spec.kv_events_port or 0) + rank}",
            replay,
            settings.kv_events_topic.encode(),
            self,
        )

    def close(self) -> None:
        """The endpoint left."""
        self._wait_no_more()
        self._sockets.close()

    def document(self) -> dict[str, Any]:
        """As the admin API shows it. `next` is the number of the batch expected next."""
        view, sync = self._view, self._sync
        return {"live": sync.live, "complete": view.complete, "blocks": len(view), "next": sync.next}

    def restarted(self) -> None:
        """The engine behind the address is another process, as its metrics tell."""
        self._do(self._sync.restarted())

    # --- what the sockets bring ---------------------------------------------------------------------------------------

    def connected(self) -> None:
        """Begin from the publisher's first batch."""
        self._do(self._sync.connected())

    def disconnected(self) -> None:
        """Nothing is known from here on: what was routed counts again."""
        self._wait_no_more()
        self._sockets.forget_replay()
        self._do(self._sync.disconnected())

    def message(self, number: int, publisher: bytes, payload: bytes) -> None:
        """A batch of the stream."""
        self._do(self._sync.message(number, publisher, payload))

    def replayed(self, number: int, payload: bytes) -> None:
        """A batch of a replay."""
        self._wait_for_replay()
        self._do(self._sync.replayed(number, payload))

    def replay_ended(self) -> None:
        """The replay is whole."""
        self._wait_no_more()
        self._do(self._sync.replay_ended())

    def unreadable(self) -> None:
        """A message that is not of the protocol."""
        self._count(Outcome.MALFORMED)

    # --- acting -------------------------------------------------------------------------------------------------------

    def _do(self, effects: "list[Effect[bytes]]") -> None:
        for effect in effects:
            if isinstance(effect, Reset):
                self._view.reset(complete=effect.complete)
            elif isinstance(effect, Apply):
                self._apply(effect.batch)
            else:
                self._wait_for_replay()
                self._sockets.ask(effect.first)
        self.tell()

    def _apply(self, payload: bytes) -> None:
        try:
            batch = decode(payload)
        except KvEventError as error:
            log.warning("unreadable KV events", extra={"endpoint": self._endpoint.id, "problem": str(error)})
            self._count(Outcome.MALFORMED)
            self._view.complete = False
            return
        rank = self._endpoint.spec.data_parallel_rank
        if rank is not None and batch.rank not in (None, rank):
            self._count(Outcome.MALFORMED)
            return
        if batch.malformed:
            self._count(Outcome.MALFORMED, batch.malformed)
            self._view.complete = False
        for event in batch.events:
            outcome = self._view.apply(event)
            self._count(outcome)
            if outcome is Outcome.CLEARED:
                self._gateway.scheduler.index.clear_slot(self._endpoint.candidate.slot)
            elif outcome is Outcome.MALFORMED:
                self._view.complete = False

    def tell(self) -> None:
        """Let decisions know whether this endpoint is told. An engine that has stored nothing yet is taken to have
        blocks of the size that others have."""
        candidate, view = self._endpoint.candidate, self._view
        size = (view.block_size or self._gateway.prompts.usual_size) if self._sync.live else None
        candidate.kv_complete = view.complete
        if candidate.kv_block_size != size:
            candidate.kv_block_size = size
            self._gateway.prompts.block_sizes_changed()

    def _noted(self, note: Note) -> None:
        self._count(note)
        log.info("KV events", extra={"endpoint": self._endpoint.id, "noted": note.value})

    def _count(self, what: Outcome | Note, amount: int = 1) -> None:
        metrics = self._gateway.metrics
        metrics.count(metrics.kv_events, (self._endpoint.id, what.value), amount)

    # --- waiting for a replay -----------------------------------------------------------------------------------------

    def _wait_for_replay(self) -> None:
        self._wait_no_more()
        self._timer = asyncio.get_running_loop().call_later(REPLAY_TIMEOUT_S, self._replay_silent)

    def _wait_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _replay_silent(self) -> None:
        self._timer = None
        self._sockets.forget_replay()
        self._do(self._sync.replay_failed())
