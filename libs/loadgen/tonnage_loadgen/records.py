"""Records from exchanges, after the load: the only place where answers are parsed."""

from array import array
from operator import sub
from typing import Any

import orjson

from tonnage_core.slo import RequestRecord
from tonnage_core.traces import TraceRequest
from tonnage_loadgen.exchange import Exchange, Outcome


def record_of(exchange: Exchange, request: TraceRequest, start: float, most_output: int | None = None) -> RequestRecord:
    """The record of one exchange, times in wall seconds after `start` (a `perf_counter` instant).

    Tokens are counted from the server's usage; when it sends none, output tokens are unknown and the prompt's length
    is the trace's. More output tokens than `most_output` are no count. An answer that holds no token has failed,
    however fast it was.
    """
    stream = exchange.stream
    stream.drop_empty_end()
    times = stream.times
    usage = stream.usage() or {}
    prompt_tokens = _count(usage.get("prompt_tokens"))
    output_tokens = _count(usage.get("completion_tokens"), most_output)
    if exchange.outcome == Outcome.OK and not output_tokens and stream.says_nothing():
        exchange.outcome = Outcome.NO_TOKENS
    return RequestRecord(
        index=request.index,
        prompt_tokens=request.input_length if prompt_tokens is None else prompt_tokens,
        intended_s=exchange.intended - start,
        dispatched_s=_after(exchange.dispatched, start),
        sent_s=_after(exchange.sent, start),
        first_s=times[0] - start if times else None,
        last_s=times[-1] - start if times else None,
        gaps_s=array("d", map(sub, times[1:], times[:-1])),
        output_tokens=output_tokens,
        cached_tokens=_cached(usage),
        outcome=exchange.outcome or Outcome.TIMEOUT,
    )


def error_text(exchange: Exchange) -> str | None:
    """What the server said of a request that failed, in one line; None when it said nothing or all went well."""
    if exchange.outcome == Outcome.OK:
        return None
    said = exchange.stream.error or exchange.body
    if not said:
        return None
    try:
        document = orjson.loads(said)
    except orjson.JSONDecodeError:
        document = None
    message = _message(document) or said[:400].decode("utf-8", "replace")
    return " ".join(f"{exchange.outcome}: {message}".split())[:300]


def _message(document: Any) -> str | None:
    if not isinstance(document, dict):
        return None
    error = document.get("error", document)
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else None


def _cached(usage: dict[str, Any]) -> int | None:
    details = usage.get("prompt_tokens_details")
    return _count(details.get("cached_tokens")) if isinstance(details, dict) else None


def _count(value: Any, most: int | None = None) -> int | None:
    return value if type(value) is int and value >= 0 and (most is None or value <= most) else None


def _after(instant: float | None, start: float) -> float | None:
    return None if instant is None else instant - start
