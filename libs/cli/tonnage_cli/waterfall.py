"""One start as a waterfall: a bar a span over the seconds since the first, in a terminal or as SVG."""

from collections.abc import Sequence
from html import escape

from tonnage_core.coldstart.phases import Span, Timeline

COLOURS = {"provision": "#5d6d7e", "pull": "#8e44ad", "fetch": "#1668b8", "load": "#2e8b57", "init": "#d68910"}
WIDTH, LEFT, ROW, BAR = 900, 190, 24, 15
CELLS = 40


def origin_of(spans: Sequence[Span]) -> float | None:
    """The first instant that is known."""
    return min((one.start_s for one in spans if one.start_s is not None), default=None)


def label_of(span: Span) -> str:
    """The phase, or the sub-phase set in."""
    return f"  {span.detail}" if span.detail else span.phase


def ordered(timeline: Timeline) -> list[Span]:
    """Spans of known length by their start, each phase's own before its parts."""
    known = [one for one in timeline.spans if one.seconds is not None]
    return sorted(known, key=lambda one: (one.start_s or 0.0, bool(one.detail)))


def bar(span: Span, origin: float, total_s: float) -> str:
    """The span among `CELLS` characters; at least one of them."""
    if span.start_s is None or span.end_s is None or total_s <= 0:
        return ""
    first = min(CELLS - 1, int((span.start_s - origin) / total_s * CELLS))
    last = max(first + 1, round((span.end_s - origin) / total_s * CELLS))
    return ("." * first + ("-" if span.detail else "=") * (last - first)).ljust(CELLS, ".")


def svg(timeline: Timeline, title: str) -> str:
    """A drawing that needs no other file."""
    spans = ordered(timeline)
    origin, total = origin_of(spans) or 0.0, timeline.total_s or 1.0
    height = ROW * (len(spans) + 3)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" font-family="sans-serif" font-size="12"><title>{escape(title)}</title>',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="8" y="{ROW - 7}" font-weight="bold">{escape(title)}</text>',
    ]
    room = WIDTH - LEFT - 80
    for second in _ticks(total):
        x = LEFT + second / total * room
        lines.append(f'<path d="M{x:.1f} {ROW}V{height - ROW}" stroke="#ddd"/>')
        lines.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle" fill="#555">{second:g} s</text>')
    for number, span in enumerate(spans):
        y = ROW * (number + 1)
        x, wide = LEFT + ((span.start_s or 0.0) - origin) / total * room, (span.seconds or 0.0) / total * room
        colour, faint = COLOURS.get(span.phase, "#333"), ' opacity="0.55"' if span.detail else ""
        lines.append(f'<text x="{8 + 12 * bool(span.detail)}" y="{y + 13}">{escape(label_of(span).strip())}</text>')
        lines.append(
            f'<rect x="{x:.1f}" y="{y + 2}" width="{max(1.0, wide):.1f}" height="{BAR}" fill="{colour}"{faint}/>'
        )
        lines.append(f'<text x="{x + wide + 5:.1f}" y="{y + 13}" fill="#333">{span.seconds or 0.0:.1f} s</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _ticks(total_s: float) -> list[float]:
    """Round seconds, at most ten."""
    step = next(
        base * scale for scale in (0.1, 1, 10, 100, 1000, 10_000, 100_000) for base in (1, 2, 5)
        if base * scale * 10 >= total_s or scale == 100_000
    )  # fmt: skip
    return [step * n for n in range(11) if step * n <= total_s]
