"""What vLLM's log tells of its start: when it read weights, compiled, captured graphs, and when it served.

Each step's line comes when the step ends and says how long it took. The lines' stamps have neither year nor zone: both
are given. Words as of vLLM 0.32; those of 0.10 and later that differ are known too.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tonnage_core.coldstart.phases import Span

STAMP = re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
SECONDS = r"([0-9]+(?:\.[0-9]+)?)"
STEPS = (
    ("load", "model", rf"Initializing model took {SECONDS} seconds"),
    ("load", "weights", rf"Loading weights took {SECONDS} seconds"),
    ("load", "", rf"Model loading took .*? (?:and )?{SECONDS} seconds"),
    ("init", "dynamo", rf"Dynamo bytecode transform time: {SECONDS} s"),
    ("init", "compile", rf"torch\.compile (?:took|takes) {SECONDS} s in total"),
    ("init", "profile", rf"Initial profiling/warmup run took {SECONDS} s"),
    ("init", "graphs", rf"Graph capturing finished in {SECONDS} secs"),
    ("init", "engine", rf"init engine \(profile, create kv cache, warmup model\) took {SECONDS} s"),
)
"""(phase, sub-phase, pattern); an empty sub-phase is the phase's own span."""
PATTERNS = tuple((phase, detail, re.compile(pattern)) for phase, detail, pattern in STEPS)
SERVES = ("Application startup complete", "Starting vLLM server on", "Starting vLLM API server")
MAX_LINE = 2000


@dataclass(frozen=True, slots=True)
class EngineLog:
    """The spans, in the log's order; None where the log does not tell."""

    spans: tuple[Span, ...]
    first_s: float | None
    serves_s: float | None
    """The API takes requests."""


def read_engine_log(lines: Iterable[str], near_s: float, *, offset_s: float = 0.0) -> EngineLog:
    """`near_s`: a time of the start in Unix seconds, for the year; `offset_s`: the log's clock minus UTC."""
    spans: dict[tuple[str, str], Span] = {}
    first = serves = last = None
    for line in lines:
        text = line[:MAX_LINE]
        at = _stamp(text, near_s, offset_s)
        last = at if at is not None else last
        first = last if first is None else first
        if last is None:
            continue
        if serves is None and any(word in text for word in SERVES):
            serves = last
        for phase, detail, pattern in PATTERNS:
            found = pattern.search(text)
            if found is not None:
                _keep(spans, Span(phase, last - float(found[1]), last, detail))
    return EngineLog(tuple(_whole_load(spans)), first, serves)


def _keep(spans: dict[tuple[str, str], Span], span: Span) -> None:
    """Of several ranks' spans of one step the one that ends last: it is what the start waits for."""
    known = spans.get((span.phase, span.detail))
    if known is None or (known.end_s or 0.0) <= (span.end_s or 0.0):
        spans[(span.phase, span.detail)] = span


def _whole_load(spans: dict[tuple[str, str], Span]) -> list[Span]:
    """Where the engine does not say how long the whole load took, from the first part of it to the last."""
    parts = [span for span in spans.values() if span.phase == "load"]
    if parts and ("load", "") not in spans:
        starts, ends = (
            [p.start_s for p in parts if p.start_s is not None],
            [p.end_s for p in parts if p.end_s is not None],
        )
        return [Span("load", min(starts), max(ends)), *spans.values()]
    return list(spans.values())


def _stamp(text: str, near_s: float, offset_s: float) -> float | None:
    found = STAMP.search(text)
    if found is None:
        return None
    month, day, hour, minute, second = (int(one) for one in found.groups())
    near = datetime.fromtimestamp(near_s, UTC)
    try:
        guesses = [datetime(near.year + n, month, day, hour, minute, second, tzinfo=UTC) for n in (-1, 0, 1)]
    except ValueError:  # 29 February of another year, or no date at all
        try:
            guesses = [datetime(near.year, month, day, hour, minute, second, tzinfo=UTC)]
        except ValueError:
            return None
    best = min(guesses, key=lambda one: abs((one - near).total_seconds()))
    return (best - timedelta(seconds=offset_s)).timestamp()
