"""One request's life: chosen, sent, answered, retried before its first byte, and released on every way out."""

import time
from typing import TYPE_CHECKING, Final

from tonnage_router.body.usage import BodyTap, StreamTap, Usage
from tonnage_router.decisions import explanation
from tonnage_router.wire.answers import answer, error_event, error_object

if TYPE_CHECKING:
    from tonnage_core.flow_control.tenants import Grant, TenantAccount
    from tonnage_core.flow_control.ttft_admission import TtftVerdict
    from tonnage_core.scheduling import Decision, Reservation
    from tonnage_router.body.facts import BodyFacts
    from tonnage_router.body.sse import UsageStripper
    from tonnage_router.fleet import Endpoint
    from tonnage_router.gateway import Gateway
    from tonnage_router.tracing import RequestTrace
    from tonnage_router.wire.client import ClientConnection
    from tonnage_router.wire.incoming import Incoming
    from tonnage_router.wire.upstream import UpstreamConnection

LAST_CHUNK: Final = b"0\r\n\r\n"
RETRIED: Final = frozenset({429, 500, 502, 503, 504})
"""Statuses another endpoint may do better on; 429 and 503 are back-pressure, not faults."""


class Exchange:
    """A request between its client and the endpoint it is tried on.

    Invariant: from `start` on, exactly one call of `_end` happens, whatever fails, and it gives back the reservation,
    the buffered bytes and the place among the active exchanges.
    """

    __slots__ = (
        "_chunked", "_head_sent", "_held_bytes", "_keep_alive", "_sent_at", "_stale_retried", "_suspects",
        "account", "admission", "ahead_tokens", "attempt", "body", "chain", "client", "decision", "encoded", "ended",
        "endpoint", "exact", "facts", "failures", "first_byte_s", "gateway", "grant", "held_at", "held_s", "incoming",
        "prompt_tokens", "reservation", "sent_bytes", "started", "status", "stripper", "tap", "tokens_per_block",
        "trace", "tried", "upstream", "usage",
    )  # fmt: skip

    def __init__(
        self, gateway: "Gateway", client: "ClientConnection", incoming: "Incoming", facts: "BodyFacts"
    ) -> None:
        self.gateway = gateway
        self.client = client
        self.incoming = incoming
        self.facts = facts
        self.body = incoming.body
        self._held_bytes = len(incoming.body)
        self.account: TenantAccount | None = incoming.account
        self.grant: Grant | None = None
        self.admission: TtftVerdict | None = None
        self.stripper: UsageStripper | None = None
        self.ahead_tokens = 0
        self._sent_at = 0.0
        self.started = time.perf_counter()
        self.first_byte_s: float | None = None
        self.held_at = 0.0
        """Since when it has been held, by `time.perf_counter`; 0: it is not."""
        self.held_s = 0.0
        """For how long it was."""
        self.attempt = 0
        self.tried: set[str] | tuple[()] = ()
        self.failures: list[str] | None = None
        self.chain: list[bytes] = []
        self.exact: dict[int, list[bytes]] | None = None
        self.encoded = False
        self.prompt_tokens = 0
        self.tokens_per_block = 0.0
        self.decision: Decision | None = None
        self.reservation: Reservation | None = None
        self.endpoint: Endpoint | None = None
        self.upstream: UpstreamConnection | None = None
        self.usage: Usage | None = None
        self.status = 0
        self.sent_bytes = 0
        self.tap: StreamTap | BodyTap | None = None
        self._head_sent = False
        self._chunked = False
        self._keep_alive = incoming.keep_alive
        self._stale_retried = False
        self._suspects: list[Endpoint] | None = None
        self.trace: RequestTrace | None = None
        self.ended = False

    # --- towards the engine -----------------------------------------------------------------------------------------

    def register(self) -> None:
        """Take the client's and the gateway's notice; the request may now wait, be dispatched, or fail."""
        self.client.exchange = self
        self.gateway.active.add(self)

    @property
    def tenant(self) -> str | None:
        """The tenant's name, for logs and the explain API."""
        return self.account.spec.name if self.account is not None else None

    def dispatch(self) -> None:
        """Make the next attempt."""
        found = self.gateway.choose(self)
        if found is None:
            self._nobody()
            return
        if isinstance(found, str):
            return
        self.decision, self.reservation, self.endpoint = found
        self.attempt += 1
        if self.gateway.lora.specs:
            self.endpoint.residency.begin_use(str(self.facts.model))
        if self.gateway.lora.ready(self, self.endpoint):
            self._connect(self.endpoint)
        elif self.trace is not None:
            self.trace.loading(self.endpoint)

    def _connect(self, endpoint: "Endpoint") -> None:
        if (apart := self.gateway.disaggregation) is not None and apart.holds(self, endpoint):
            return
        if self.trace is not None:
            self.trace.attempted(endpoint)
        if (connection := endpoint.pool.take()) is not None:
            self.connected(connection)
        else:
            endpoint.pool.connect(self)

    def resume(self) -> None:
        """What had to come first is done: the adapter is loaded, or the prompt computed elsewhere."""
        assert self.endpoint is not None
        self._connect(self.endpoint)

    def adapter_failed(self) -> None:
        """The adapter could not be loaded on the chosen endpoint."""
        self._attempt_failed("adapter")

    def connected(self, connection: "UpstreamConnection") -> None:
        """A connection to the chosen endpoint is there: send."""
        endpoint = self.endpoint
        assert endpoint is not None
        self.upstream = connection
        self._sent_at = time.perf_counter()
        self.ahead_tokens = endpoint.candidate.prefill_tokens
        incoming = self.incoming
        body = self.gateway.rewriter.body_for(self, endpoint)
        head = (
            incoming.method
            + b" "
            + incoming.target
            + endpoint.request_end
            + self.gateway.rewriter.header_lines(self, endpoint)
            + b"content-length: %d\r\n\r\n" % len(body)
        )
        connection.send(self, head, body)

    def connect_failed(self) -> None:
        """No connection to the chosen endpoint."""
        self._attempt_failed("connect")

    # --- from the engine --------------------------------------------------------------------------------------------

    def piece(self, upstream: "UpstreamConnection", piece: bytes, complete: bool) -> None:
        """Body bytes of the answer, the first of them after its whole head."""
        if self._head_sent:
            if self.tap is not None:
                piece = self._tapped(piece, complete)
            data = self._framed(piece, complete)
        else:
            if upstream.status in RETRIED and self._refused(upstream, complete):
                return
            data = self._first(upstream, piece, complete)
        if data:
            self.sent_bytes += len(data)
            self.client.transport.write(data)
        if complete:
            self._complete()

    def passes_chunk(self, data: bytes, at: int) -> bool:
        """Whether one whole chunk may go to the client in its framing, which `_framed` would give it again: nothing in
        it, from `at` on, is to be read or taken out."""
        held = self.stripper is not None and len(self.stripper.held) > 0
        return self._chunked and not held and self.tap is not None and self.tap.passes_chunk(data, at)

    def passed_unread(self, events: int, size: int) -> None:
        """So many bytes went to the client in their chunks' framing, and so many events that the tap has not seen."""
        self.sent_bytes += size
        if self.tap is not None:
            self.tap.events += events

    def _tapped(self, piece: bytes, complete: bool) -> bytes:
        """Read usage as it passes; take out the usage event that only the router asked for."""
        tap, stripper = self.tap, self.stripper
        assert tap is not None
        if (stripper is None or not stripper.held) and tap.passes(piece):
            return piece
        tap.feed(piece)
        if stripper is not None:
            piece = stripper.feed(piece) + (stripper.end() if complete else b"")
        return piece

    def _framed(self, piece: bytes, complete: bool) -> bytes:
        if not self._chunked:
            return piece
        if not complete:
            return b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
        return b"%x\r\n%b\r\n%b" % (len(piece), piece, LAST_CHUNK) if piece else LAST_CHUNK

    def _refused(self, upstream: "UpstreamConnection", complete: bool) -> bool:
        """An endpoint cannot answer: note it, and try elsewhere if that is possible."""
        endpoint, gateway = self.endpoint, self.gateway
        assert endpoint is not None
        backpressure = upstream.status in (429, 503)
        gateway.endpoint_failed(endpoint, "backpressure" if backpressure else "status", self)
        if not backpressure:
            self._suspect(endpoint)
        if not gateway.may_retry(self):
            return False
        if not complete:
            upstream.drop()
        self._again(f"{endpoint.id}: {upstream.status}")
        return True

    def _suspect(self, endpoint: "Endpoint") -> None:
        """An endpoint answered with a fault. The first may be to blame, if there is another to take its place; from the
        second on it is the request, and a few of its kind must not take the whole fleet out."""
        suspects = self._suspects = [*(self._suspects or ()), endpoint]
        if len(suspects) > 1 or self.gateway.alone(endpoint, self.facts.pool):
            for innocent in suspects if len(suspects) < 3 else suspects[-1:]:
                innocent.breaker.pardon()
                self.gateway.refresh(innocent)

    def _first(self, upstream: "UpstreamConnection", piece: bytes, complete: bool) -> bytes:
        """The head, framed for this client, and the first body bytes; from here on there is no retry."""
        incoming, status = self.incoming, upstream.status
        self._head_sent = True
        self.status = status
        self.first_byte_s = time.perf_counter() - self.started
        if status < 500 and status != 429:
            self.gateway.endpoint_answered(self)
        framing = b""
        if self.stripper is not None and status == 200 and upstream.event_stream:
            upstream.forget_length()
        if upstream.length is None and not upstream.bodyless:
            if incoming.version_11:
                self._chunked = True
                framing = b"transfer-encoding: chunked\r\n"
            else:
                self._keep_alive = False
        self._release_body()
        if status == 200:
            self.tap = StreamTap() if upstream.event_stream else BodyTap()
            if not upstream.event_stream:
                self.stripper = None
            piece = self._tapped(piece, complete)
        if self.gateway.draining or self.client.closing:
            self._keep_alive = False
        if not self._keep_alive:
            framing += b"connection: close\r\n"
        elif not incoming.version_11:
            framing += b"connection: keep-alive\r\n"
        if incoming.explain:
            assert self.decision is not None and self.endpoint is not None
            framing += explanation(self.decision, self.endpoint.id)
        if self.client.paused:
            upstream.transport.pause_reading()
        return upstream.head(framing) + b"\r\n" + self._framed(piece, complete)

    def _release_body(self) -> None:
        self.gateway.unbuffer(self._held_bytes)
        self._held_bytes = 0
        self.body = self.incoming.body = b""

    def _complete(self) -> None:
        if self.client.paused and self.upstream is not None:
            self.upstream.transport.resume_reading()  # the connection is for other clients now
        self.upstream = None
        self._end("ok" if self.status < 400 else "upstream_status")
        self.client.next_request(self._keep_alive)

    def upstream_failed(self, upstream: "UpstreamConnection", kind: str) -> None:
        """The connection broke, was silent for too long, or spoke nonsense. A kept-alive connection that closes without
        an answer was stale: one more try on the same endpoint, on a fresh connection, without blame."""
        if self.ended:
            return
        self.upstream = None
        if self._head_sent:
            self._cut(upstream, kind)
        elif kind == "closed" and upstream.reused and not self._stale_retried:
            self._stale_retried = True
            assert self.endpoint is not None
            self.attempt += 1
            if self.trace is not None:
                self.trace.failed("stale")
                self.trace.attempted(self.endpoint)
            self.endpoint.pool.connect(self)
        else:
            self._attempt_failed(kind)

    def _attempt_failed(self, kind: str) -> None:
        endpoint, gateway = self.endpoint, self.gateway
        assert endpoint is not None
        gateway.endpoint_failed(endpoint, kind, self)
        if gateway.may_retry(self):
            self._again(f"{endpoint.id}: {kind}")
        else:
            what = f"the engine did not answer ({kind}) and no other endpoint may be tried"
            self.fail(504 if kind == "timeout" else 502, what, f"upstream_{kind}")

    def _again(self, failure: str) -> None:
        """Another endpoint, at once: nothing has reached the client."""
        endpoint, reservation = self.endpoint, self.reservation
        assert endpoint is not None and reservation is not None
        self.upstream = None
        if self.trace is not None:
            self.trace.failed(failure.rpartition(": ")[2])
        self._leave()
        reservation.release()
        self.reservation = None
        self.tried = {*self.tried, endpoint.id}
        self.failures = [*(self.failures or ()), failure]
        self._stale_retried = False
        self.dispatch()

    def _nobody(self) -> None:
        if self.failures:
            self.fail(502, f"every endpoint that could be tried failed ({'; '.join(self.failures)})", "upstream_failed")
        else:
            self.fail(503, f"no endpoint serves model {self.facts.model!r} now; try again later", "no_endpoint", 2)

    def _cut(self, upstream: "UpstreamConnection", kind: str) -> None:
        """The engine died in the middle of its answer: say so in a stream, and never end it as if it were whole."""
        assert self.endpoint is not None
        self.gateway.endpoint_failed(self.endpoint, kind, self)
        leave = self.client.abort
        if upstream.event_stream and self._chunked:
            event = error_event(f"upstream_{kind}", self.incoming.path)
            self.client.transport.write(self._framed(event, False))
            leave = self.client.close
        self._end("cut")
        self.client.exchange = None
        leave()

    # --- from the client and the sweeper ------------------------------------------------------------------------------

    def client_gone(self) -> None:
        """Nobody waits for the answer: stop the engine at once."""
        if self.upstream is not None:
            self.upstream.drop()
            self.upstream = None
        self.attempt += 1  # a connection being opened is no longer for us
        self._end("client_gone")

    def client_paused(self) -> None:
        """The client reads slower than the engine writes."""
        if self.upstream is not None and self._head_sent:
            self.upstream.transport.pause_reading()

    def client_resumed(self) -> None:
        """The client caught up."""
        if self.upstream is not None:
            self.upstream.quiet_ticks = 0
            self.upstream.transport.resume_reading()

    @property
    def answering(self) -> bool:
        """The client has part of the answer."""
        return self._head_sent

    @property
    def waited_s(self) -> float:
        """Seconds since the request went to its endpoint; 0 while it has not."""
        return time.perf_counter() - self._sent_at if self.upstream is not None else 0.0

    def fail(self, status: int, message: str, code: str, retry_after_s: int | None = None) -> None:
        """Answer an error of the router's own."""
        self.status = status
        self._keep_alive = self._keep_alive and not self.gateway.draining and not self.client.closing
        body = error_object(status, message, code)
        self.client.transport.write(answer(status, body, close=not self._keep_alive, retry_after_s=retry_after_s))
        self._end(code)
        self.client.next_request(self._keep_alive)

    def _leave(self) -> None:
        """This attempt no longer uses its endpoint."""
        if self.endpoint is not None and self.gateway.lora.specs:
            self.endpoint.residency.end_use(str(self.facts.model))

    def _end(self, outcome: str) -> None:
        if self.ended:
            return
        self.ended = True
        if self.tap is not None:
            self.usage = self.tap.usage()
        if self.reservation is not None:
            self._leave()
            self.reservation.release()
        self._release_body()
        self.gateway.active.discard(self)
        self.gateway.ended(self, outcome)
