"""The phases of a cold start and of one transfer, as a timeline whose unknown parts stay unknown."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

COLD_START_PHASES = ("provision", "pull", "fetch", "load", "init")
"""Node ready, image pulled, weights on the node, weights on the device, engine initialised: in this order."""


@dataclass(frozen=True, slots=True)
class Span:
    """One phase; times in seconds on one clock, None while unknown. `detail` names a sub-phase."""

    phase: str
    start_s: float | None
    end_s: float | None
    detail: str = ""

    @property
    def seconds(self) -> float | None:
        """Duration, or None when either end is unknown."""
        return None if self.start_s is None or self.end_s is None else self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Timeline:
    """A start: its spans in order, the total where both ends are known, and the time no span accounts for."""

    spans: tuple[Span, ...]
    total_s: float | None
    unexplained_s: float | None
    unknown: tuple[str, ...]
    """Phases with no known duration."""


def timeline(spans: Iterable[Span]) -> Timeline:
    """Order the spans and account for the whole; overlapping spans are counted once.

    Raises ValueError for a phase that is not one of a cold start or a span that ends before it starts.
    """
    ordered = sorted(spans, key=_order)
    for span in ordered:
        if span.phase not in COLD_START_PHASES:
            raise ValueError(f"{span.phase!r} is not a phase; known: {', '.join(COLD_START_PHASES)}")
        if span.seconds is not None and span.seconds < 0:
            raise ValueError(f"phase {span.phase} ends {-span.seconds:g} s before it starts: clocks differ")
    known = [(span.start_s, span.end_s) for span in ordered if span.start_s is not None and span.end_s is not None]
    unknown = tuple(p for p in COLD_START_PHASES if not any(s.phase == p and s.seconds is not None for s in ordered))
    if not known:
        return Timeline(tuple(ordered), None, None, unknown)
    total = max(end for _, end in known) - min(start for start, _ in known)
    return Timeline(tuple(ordered), total, total - _covered(known), unknown)


def phase_seconds(spans: Iterable[Span]) -> Mapping[str, float | None]:
    """Seconds of each phase, its top-level spans summed; None for a phase without a known span."""
    found: dict[str, float | None] = dict.fromkeys(COLD_START_PHASES)
    for span in spans:
        if not span.detail and span.seconds is not None:
            found[span.phase] = (found.get(span.phase) or 0.0) + span.seconds
    return found


def _order(span: Span) -> tuple[float, int, str]:
    start = span.start_s if span.start_s is not None else float("inf")
    rank = COLD_START_PHASES.index(span.phase) if span.phase in COLD_START_PHASES else len(COLD_START_PHASES)
    return start, rank, span.detail


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered
