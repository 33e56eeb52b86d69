"""One start from its sources: the pod, the staging, the engine's log; each second in one phase, or in none."""

from collections.abc import Mapping, Sequence
from typing import Any

from tonnage_core.coldstart.engine_log import EngineLog
from tonnage_core.coldstart.phases import COLD_START_PHASES, Span, Timeline, phase_seconds, timeline
from tonnage_core.coldstart.pod_spans import PodStart
from tonnage_core.errors import BadInputError

SCHEMA = "tonnage.start/1"


def start_spans(pod: PodStart | None, log: EngineLog | None, fetched: Sequence[Span] = ()) -> list[Span]:
    """All spans. What of the engine's own time is not its load is `init`: before the load, and after it until ready.

    Raises `BadInputError` when the sources contradict each other: their clocks differ, or they are not of one start.
    """
    spans = [*(pod.spans if pod else ()), *fetched, *(log.spans if log else ())]
    begun = pod.started_s if pod and pod.started_s is not None else log.first_s if log else None
    ready = pod.ready_s if pod and pod.ready_s is not None else log.serves_s if log else None
    load = next((one for one in spans if one.phase == "load" and not one.detail), None)
    if load is None or load.start_s is None or load.end_s is None:
        spans.append(Span("init", begun, ready))
    else:
        spans.append(Span("init", begun, load.start_s))
        spans.append(Span("init", load.end_s, ready))
        spans.append(Span("init", begun, load.start_s, "process"))
    if pod and log and pod.started_s is not None and log.first_s is not None and log.first_s < pod.started_s - 1:
        raise BadInputError(
            f"the log begins {pod.started_s - log.first_s:.0f} s before its container: it is of another start, "
            "or its clock is not UTC (--log-offset)"
        )
    for one in spans:
        if one.seconds is not None and one.seconds < -1:
            raise BadInputError(
                f"phase {one.phase} {one.detail} ends {-one.seconds:.0f} s before it starts: the sources' clocks "
                "differ (--log-offset), or they are not of one start"
            )
    return [_forward(one) for one in spans]


def document(name: str, pool: str, spans: Sequence[Span]) -> dict[str, Any]:
    """`tonnage.start/1`: times in Unix seconds; null is unknown. The total is from the first known to the last."""
    found = timeline(spans)
    return {
        "schema": SCHEMA,
        "version": 1,
        "name": name,
        "pool": pool,
        "total_s": found.total_s,
        "unexplained_s": found.unexplained_s,
        "phases": dict(phase_seconds(spans)),
        "unknown": list(found.unknown),
        "spans": [
            {"phase": one.phase, "detail": one.detail, "start_s": one.start_s, "end_s": one.end_s}
            for one in found.spans
        ],
    }


def read_document(given: Mapping[str, Any]) -> Timeline:
    """The timeline of a document. Raises `BadInputError`."""
    if given.get("schema") != SCHEMA or not isinstance(given.get("spans"), list):
        raise BadInputError(f"not a start: schema {SCHEMA} with spans is expected")
    try:
        spans = [Span(one["phase"], one["start_s"], one["end_s"], one.get("detail", "")) for one in given["spans"]]
        return timeline(spans)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInputError(
            f"spans need a phase of {', '.join(COLD_START_PHASES)}, start_s and end_s: {error}"
        ) from error


def _forward(span: Span) -> Span:
    """Stamps are whole seconds: a span that ends within one before it starts takes no time."""
    if span.seconds is not None and span.seconds < 0:
        return Span(span.phase, span.start_s, span.start_s, span.detail)
    return span
