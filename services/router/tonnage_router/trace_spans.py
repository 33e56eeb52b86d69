"""What the spans of a request say, under OpenTelemetry's names for HTTP and generative AI where there are any.

Never prompts, answers, keys or headers; of what clients write, the model's name and the request's id alone.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from tonnage_core.tracing.otlp import MAX_TEXT_BYTES, Kind, Span, Value

if TYPE_CHECKING:
    from tonnage_router.exchange import Exchange
    from tonnage_router.fleet import Endpoint
    from tonnage_router.tracing import RequestTrace

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""Where `gen_ai.operation.name` has a well-known value for the path."""
CALLS = ("attempt", "prefill")
"""Phases in which an engine is called."""
OUTCOME_OF_ATTEMPT = "upstream_"
"""Outcomes of requests whose last attempt failed begin so, and go on with its kind of failure."""


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
    trace: "RequestTrace",
    exchange: "Exchange",
    outcome: str,
    duration_s: float,
    since_epoch_s: float,
    facts: Mapping[str, Value | None],
) -> Iterator[Span]:
    """The request's own span, with `facts` among its attributes, and one of each phase. `since_epoch_s` is what the
    process's own clock has to be given to be seconds since the epoch."""
    caller = trace.caller
    path = exchange.incoming.path.decode("latin-1")
    end = exchange.started + duration_s
    failed = exchange.status >= 500 or outcome == "cut"
    yield Span(
        trace.trace_id,
        trace.span_id,
        caller.parent_id if caller is not None else 0,
        f"POST {path}",
        Kind.SERVER,
        _ns(exchange.started, since_epoch_s),
        _ns(end, since_epoch_s),
        {**_request(exchange, path, outcome, failed=failed), **facts},
        outcome if failed else None,
        caller.state if caller is not None else b"",
    )
    _close(trace.phases, exchange, outcome, end)
    resent = 0
    for phase in trace.phases:
        yield Span(
            trace.trace_id,
            phase.span_id,
            trace.span_id,
            phase.name,
            Kind.CLIENT if phase.name in CALLS else Kind.INTERNAL,
            _ns(phase.begun, since_epoch_s),
            _ns(end if phase.ended is None else phase.ended, since_epoch_s),
            _phase(phase, exchange, path, resent, last=phase is trace.phases[-1]),
            phase.why,
            caller.state if caller is not None else b"",
        )
        resent += phase.name == "attempt"


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


def _request(exchange: "Exchange", path: str, outcome: str, *, failed: bool) -> dict[str, Value | None]:
    facts, usage, decision, endpoint = exchange.facts, exchange.usage, exchange.decision, exchange.endpoint
    request_id = exchange.incoming.request_id
    status = exchange.status or None
    return {
        "http.request.method": "POST",
        "http.route": path,
        "url.path": path,
        "http.response.status_code": status,
        "error.type": (str(status) if exchange.status >= 500 else outcome) if failed else None,
        "gen_ai.operation.name": OPERATIONS.get(path),
        "gen_ai.request.model": facts.model,
        "gen_ai.request.max_tokens": facts.max_tokens,
        "gen_ai.usage.input_tokens": usage.prompt_tokens if usage is not None else None,
        "gen_ai.usage.output_tokens": usage.completion_tokens if usage is not None else None,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens if usage is not None else None,
        "gen_ai.latency.time_to_first_token": exchange.first_byte_s if facts.stream else None,
        "tonnage.first_byte_s": exchange.first_byte_s,
        "tonnage.outcome": outcome,
        "tonnage.pool": facts.pool,
        "tonnage.stream": facts.stream,
        "tonnage.endpoint": endpoint.id if endpoint is not None else None,
        "tonnage.reason": decision.reason.value if decision is not None else None,
        "tonnage.prompt_tokens": exchange.prompt_tokens,
        "tonnage.hit_tokens": decision.matched_tokens if decision is not None else None,
        "tonnage.retries": len(exchange.failures) if exchange.failures else 0,
        "tonnage.request_id": request_id[:MAX_TEXT_BYTES].decode("latin-1") if request_id else None,
    }


def _phase(phase: Phase, exchange: "Exchange", path: str, resent: int, *, last: bool) -> dict[str, Value | None]:
    endpoint, why = phase.endpoint, phase.why
    if endpoint is None:
        return {"error.type": why, "tonnage.pool": exchange.facts.pool}
    found: dict[str, Value | None] = {"error.type": why, "tonnage.endpoint": endpoint.id}
    if phase.name not in CALLS:
        return found | {"tonnage.adapter": exchange.facts.model}
    status = exchange.status if last and exchange.answering else int(why) if why is not None and why.isdigit() else None
    return found | {
        "http.request.method": "POST",
        "url.path": path,
        "server.address": endpoint.host,
        "server.port": endpoint.port,
        "http.response.status_code": status,
        "http.request.resend_count": resent or None,
        "tonnage.role": endpoint.spec.role,
    }
