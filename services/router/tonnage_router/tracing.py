"""Traces: what a request does while it is here, noted as it happens and made into spans when it has ended.

A request is in one phase at a time: it waits, its adapter is loaded, its prompt is computed elsewhere, or an endpoint
is tried. Each phase is a child of the request's own span; the engine is told which one it is called for.
"""

import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tonnage_core.tracing.context import RANDOM, SAMPLED, TraceContext, header, read_context
from tonnage_core.tracing.otlp import encoded_span
from tonnage_core.tracing.sampling import Sampler
from tonnage_router.trace_exporter import TraceExporter
from tonnage_router.trace_spans import Origin, Phase, refused_span, spans_of

if TYPE_CHECKING:
    from tonnage_router.exchange import Exchange
    from tonnage_router.fleet import Endpoint
    from tonnage_router.metrics import RouterMetrics
    from tonnage_router.settings import RouterSettings
    from tonnage_router.wire.headers import Header
    from tonnage_router.wire.incoming import Incoming

PARENT = frozenset({b"traceparent"})
PARENT_AND_STATE = frozenset({b"traceparent", b"tracestate"})


class RequestTrace:
    """One request's trace. `line` is the `traceparent` line for whatever is called next, in place of the client's lines
    named in `replaces`. One that is not recorded notes nothing, and tells engines not to record either."""

    __slots__ = ("_ids", "caller", "flags", "line", "phases", "recording", "replaces", "span_id", "trace_id")

    def __init__(self, ids: random.Random, trace_id: int, caller: TraceContext | None, *, recording: bool) -> None:
        self._ids = ids
        self.trace_id = trace_id
        self.caller = caller
        self.recording = recording
        self.flags = (SAMPLED if recording else 0) | (caller.flags & RANDOM if caller is not None else 0)
        self.replaces = PARENT_AND_STATE if caller is None else PARENT
        self.phases: list[Phase] = []
        self.span_id = ids.getrandbits(64) or 1
        self.line = self._line(self.span_id)

    def _line(self, span_id: int) -> bytes:
        return b"traceparent: %b\r\n" % header(self.trace_id, span_id, self.flags)

    def queued(self) -> None:
        """It waits for capacity."""
        self._enter("queue", None)

    def held(self) -> None:
        """It waits for answers that it would make too slow."""
        self._enter("hold", None)

    def loading(self, endpoint: "Endpoint") -> None:
        """It waits for its adapter on the chosen endpoint."""
        self._enter("load adapter", endpoint)

    def prefilling(self, endpoint: "Endpoint") -> None:
        """Its prompt is computed on a prefill endpoint."""
        self._enter("prefill", endpoint)

    def attempted(self, endpoint: "Endpoint") -> None:
        """It is sent to an endpoint: a connection is at hand, or being opened."""
        self._enter("attempt", endpoint)

    def _enter(self, name: str, endpoint: "Endpoint | None") -> None:
        if self.recording:
            span_id = self._ids.getrandbits(64) or 1
            self.phases.append(Phase(name, endpoint, span_id, time.perf_counter()))
            self.line = self._line(span_id)

    def failed(self, why: str) -> None:
        """The present phase came to nothing: a kind of failure, or the status an engine answered."""
        if self.phases:
            self.phases[-1].fail(why, time.perf_counter())


class Tracer:
    """Begins and ends the traces of a process."""

    def __init__(self, settings: "RouterSettings", metrics: "RouterMetrics", policy: str) -> None:
        self.exporter = TraceExporter(settings, metrics.trace_spans)
        self._sampler = Sampler(settings.trace_sampler, settings.trace_ratio)
        self._ids = random.Random()
        self._metrics = metrics
        self._policy = policy
        self._scheme = "http" if settings.tls is None else "https"

    def begin(self, exchange: "Exchange") -> None:
        """Take up the caller's context and decide whether to record. A caller that does not record has its lines passed
        on as they are, where this router records no more than it."""
        caller, trace_id = self._context(exchange.incoming.headers)
        recording = self._sampler.samples(trace_id, caller)
        if recording or caller is None or caller.sampled:
            exchange.trace = RequestTrace(self._ids, trace_id, caller, recording=recording)

    def _context(self, headers: "Sequence[Header]") -> tuple[TraceContext | None, int]:
        """The caller's context, where there is one, and the trace's id."""
        parents, states = [], []
        for name, value in headers:
            size = len(name)
            if size == 11 and name.lower() == b"traceparent":
                parents.append(value)
            elif size == 10 and name.lower() == b"tracestate":
                states.append(value)
        caller = read_context(parents, states)
        return caller, caller.trace_id if caller is not None else self._ids.getrandbits(128) or 1

    def refused(self, incoming: "Incoming | None", status: int, why: str) -> None:
        """Hand on the span of a request that was answered before it was routed, and perhaps before it was read."""
        caller, trace_id = self._context(incoming.headers if incoming is not None else ())
        if not self._sampler.samples(trace_id, caller) or not self.exporter.has_room(1):
            return
        span_id, account = self._ids.getrandbits(64) or 1, incoming.account if incoming is not None else None
        named = None if account is None else self._metrics.tenants.label(account.spec.name)
        origin = Origin(self._scheme, self._policy, named)
        span = refused_span(trace_id, span_id, caller, incoming, status, why, time.time_ns(), origin)
        self.exporter.add(encoded_span(span), 1)

    def ended(self, exchange: "Exchange", outcome: str, duration_s: float) -> None:
        """Hand on the spans of a request that has ended, if they are wanted and there is room for them."""
        trace = exchange.trace
        if trace is None or not trace.recording:
            return
        count = 1 + len(trace.phases)
        if not self.exporter.has_room(count):
            return
        tenant = exchange.tenant
        named = None if tenant is None else self._metrics.tenants.label(tenant)
        since_epoch_s = time.time() - time.perf_counter()
        origin = Origin(self._scheme, self._policy, named)
        found = spans_of(trace, exchange, outcome, duration_s, since_epoch_s, origin)
        self.exporter.add(b"".join(map(encoded_span, found)), count)
