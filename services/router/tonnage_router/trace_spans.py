"""What the spans of a request say, under OpenTelemetry's names for HTTP and generative AI where there are any.

Never prompts, answers, keys or headers; of what clients write, the model's name and the request's id alone.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tonnage_core.tracing.otlp import MAX_TEXT_BYTES, Kind, Span, Value, encoded_attributes
from tonnage_router.body.shapes import PROMPTS

if TYPE_CHECKING:
    from tonnage_core.tracing.context import TraceContext
    from tonnage_router.exchange import Exchange
    from tonnage_router.fleet import Endpoint
    from tonnage_router.tracing import RequestTrace
    from tonnage_router.wire.incoming import Incoming

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""Where `gen_ai.operation.name` has a well-known value for the path."""
ROUTES = frozenset({*PROMPTS, b"/v1/models"})
METHODS = frozenset({b"CONNECT", b"DELETE", b"GET", b"HEAD", b"OPTIONS", b"PATCH", b"POST", b"PUT", b"QUERY", b"TRACE"})
"""Those that a span may name; others are `_OTHER`, so that clients cannot make up names."""
CALLS = ("attempt", "prefill")
"""Phases in which an engine is called."""
OUTCOME_OF_ATTEMPT = "upstream_"
"""Outcomes of requests whose last attempt failed begin so, and go on with its kind of failure."""


class Origin(NamedTuple):
    """What a span says of where it was made, and for whom."""

    scheme: str
    policy: str
    tenant: str | None


class Phase:
    """A part of a request's life, from `begun` (`time.perf_counter`) until it fails or the next one begins."""

    __slots__ = ("begun", "ended", "endpoint", "name", "span_id", "why")

    def __init__(self, name: str, endpoint: "Endpoint | None", span_id: int, begun: float) -> None:
        self.name = name
        self.endpoint = endpoint
        self.span_id = span_id
        self.begun = begun
        self.ended: float | None = None
        self.why: str | None = None

    def fail(self, why: str, now: float) -> None:
        """It came to nothing."""
        self.ended = now
        self.why = why


def spans_of(
    trace: "RequestTrace", exchange: "Exchange", outcome: str, duration_s: float, since_epoch_s: float, origin: Origin
) -> Iterator[Span]:
    """The request's own span, and one of each phase. `since_epoch_s` is what the process's own clock has to be given to
    be seconds since the epoch."""
    caller = trace.caller
    path = exchange.incoming.path.decode("latin-1")
    end = exchange.started + duration_s
    failed = exchange.status >= 500 or outcome == "cut"
    state = caller.state if caller is not None else b""
    yield Span(
        trace.trace_id,
        trace.span_id,
        caller.parent_id if caller is not None else 0,
        f"POST {path}",
        Kind.SERVER,
        _ns(exchange.started, since_epoch_s),
        _ns(end, since_epoch_s),
        _numbers(exchange),
        _labels_of(exchange, path, outcome, origin, failed=failed),
        outcome if failed else None,
        state,
    )
    _close(trace.phases, exchange, outcome, end)
    resent = 0
    for phase in trace.phases:
        last = phase is trace.phases[-1]
        yield Span(
            trace.trace_id,
            phase.span_id,
            trace.span_id,
            phase.name,
            Kind.CLIENT if phase.name in CALLS else Kind.INTERNAL,
            _ns(phase.begun, since_epoch_s),
            _ns(end if phase.ended is None else phase.ended, since_epoch_s),
            {"http.request.resend_count": resent or None} if phase.name == "attempt" else {},
            _phase_labels_of(phase, exchange, path, exchange.status if last and exchange.answering else None),
            phase.why,
            state,
        )
        resent += phase.name == "attempt"


def refused_span(
    trace_id: int,
    span_id: int,
    caller: "TraceContext | None",
    incoming: "Incoming | None",
    status: int,
    why: str,
    now_ns: int,
    origin: Origin,
) -> Span:
    """The only span of a request that was answered before it was routed: of no length, since when its first byte came
    is not noted. As OpenTelemetry has it of servers, a status below 500 is no error."""
    method = incoming.method if incoming is not None and incoming.method in METHODS else b""
    target = incoming.target.partition(b"?")[0] if incoming is not None else b""
    route = target.decode() if target in ROUTES else None
    # Cut before they are remembered: a client may send many, each as long as a head may be.
    path = target[:MAX_TEXT_BYTES].decode("latin-1") if target.startswith(b"/") else None
    why = why[:MAX_TEXT_BYTES]
    failed = status >= 500
    request_id = incoming.request_id if incoming is not None else None
    return Span(
        trace_id,
        span_id,
        caller.parent_id if caller is not None else 0,
        " ".join(filter(None, (method.decode() or "HTTP", route))),
        Kind.SERVER,
        now_ns,
        now_ns,
        {
            "http.request.method": method.decode() or "_OTHER",
            "http.route": route,
            "url.path": path,
            "url.scheme": origin.scheme,
            "http.response.status_code": status,
            "error.type": str(status) if failed else None,
            "tonnage.outcome": "refused",
            "tonnage.refusal": why,
            "tonnage.policy": origin.policy,
            "tonnage.tenant": origin.tenant,
            "tonnage.request_id": request_id[:MAX_TEXT_BYTES].decode("latin-1") if request_id else None,
        },
        error=why if failed else None,
        state=caller.state if caller is not None else b"",
    )


def _ns(seconds: float, since_epoch_s: float) -> int:
    return int((seconds + since_epoch_s) * 1e9)


def _close(phases: list[Phase], exchange: "Exchange", outcome: str, end: float) -> None:
    """Each phase lasted until the next began; the last one shares the request's end."""
    for phase, following in pairwise(phases):
        if phase.ended is None:
            phase.ended = following.begun
    if phases and phases[-1].ended is None:
        why = outcome.removeprefix(OUTCOME_OF_ATTEMPT)
        if outcome == "upstream_status":
            why = str(exchange.status)
        elif outcome in ("ok", "client_gone"):
            return
        phases[-1].fail(why, end)


def _numbers(exchange: "Exchange") -> dict[str, Value | None]:
    """What differs from request to request."""
    facts, usage, decision = exchange.facts, exchange.usage, exchange.decision
    request_id = exchange.incoming.request_id
    return {
        "gen_ai.request.max_tokens": facts.max_tokens,
        "gen_ai.usage.input_tokens": usage.prompt_tokens if usage is not None else None,
        "gen_ai.usage.output_tokens": usage.completion_tokens if usage is not None else None,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens if usage is not None else None,
        "gen_ai.latency.time_to_first_token": exchange.first_byte_s if facts.stream else None,
        "tonnage.first_byte_s": exchange.first_byte_s,
        "tonnage.prompt_tokens": exchange.prompt_tokens,
        "tonnage.hit_tokens": decision.matched_tokens if decision is not None else None,
        "tonnage.retries": len(exchange.failures) if exchange.failures else 0,
        "tonnage.request_id": request_id[:MAX_TEXT_BYTES].decode("latin-1") if request_id else None,
    }


def _labels_of(exchange: "Exchange", path: str, outcome: str, origin: Origin, *, failed: bool) -> bytes:
    facts, decision, endpoint = exchange.facts, exchange.decision, exchange.endpoint
    return _labels(
        path,
        exchange.status,
        outcome,
        failed,
        facts.model,
        facts.base,
        facts.stream,
        endpoint.id if endpoint is not None else None,
        decision.reason.value if decision is not None else None,
        origin,
    )


@lru_cache(maxsize=1024)
def _labels(
    path: str,
    status: int,
    outcome: str,
    failed: bool,
    model: str | None,
    pool: str,
    stream: bool,
    endpoint: str | None,
    reason: str | None,
    origin: Origin,
) -> bytes:
    return encoded_attributes(
        {
            "http.request.method": "POST",
            "http.route": path,
            "url.path": path,
            "url.scheme": origin.scheme,
            "http.response.status_code": status or None,
            "error.type": (str(status) if status >= 500 else outcome) if failed else None,
            "gen_ai.operation.name": OPERATIONS.get(path),
            "gen_ai.request.model": model,
            "tonnage.outcome": outcome,
            "tonnage.pool": pool,
            "tonnage.stream": stream,
            "tonnage.endpoint": endpoint,
            "tonnage.policy": origin.policy,
            "tonnage.reason": reason,
            "tonnage.tenant": origin.tenant,
        }
    )


def _phase_labels_of(phase: Phase, exchange: "Exchange", path: str, status: int | None) -> bytes:
    endpoint, why, facts = phase.endpoint, phase.why, exchange.facts
    if endpoint is None:
        return encoded_attributes({"error.type": why, "tonnage.pool": facts.base})
    if phase.name not in CALLS:
        return encoded_attributes({"error.type": why, "tonnage.endpoint": endpoint.id, "tonnage.adapter": facts.model})
    if status is None and why is not None and why.isdigit():
        status = int(why)
    return _call_labels(path, endpoint.id, endpoint.host, endpoint.port, endpoint.spec.role, status, why)


@lru_cache(maxsize=1024)
def _call_labels(
    path: str, endpoint: str, host: str, port: int, role: str, status: int | None, why: str | None
) -> bytes:
    return encoded_attributes(
        {
            "http.request.method": "POST",
            "url.path": path,
            "server.address": host,
            "server.port": port,
            "http.response.status_code": status,
            "error.type": why,
            "tonnage.endpoint": endpoint,
            "tonnage.role": role,
        }
    )
