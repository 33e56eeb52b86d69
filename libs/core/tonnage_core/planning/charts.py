"""Small SVG charts for the plan's page: lines or dots on linear or logarithmic axes. Text only, nothing loaded."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 15, 15, 45


@dataclass(frozen=True, slots=True)
class Line:
    """Points joined (`joined`) or as dots with a label each; `label` is what the legend calls it."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: str
    joined: bool = True
    dashed: bool = False
    names: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis shows and how."""

    label: str
    log: bool = False


def chart(lines: Sequence[Line], x: Axis, y: Axis, limit: float | None = None) -> str:
    """An `<svg>`; `limit` draws a dashed horizontal line. A sentence where there is nothing to draw."""
    points = [
        point for line in lines for point in line.points if (point[0] > 0 or not x.log) and (point[1] > 0 or not y.log)
    ]
    if not points:
        return "<p>Nothing to draw.</p>"
    across = _Scale([p[0] for p in points], x.log, _LEFT, WIDTH - _RIGHT)
    ups = [p[1] for p in points] + ([limit] if limit is not None else [])
    up = _Scale(ups, y.log, HEIGHT - _BOTTOM, _TOP)
    title = escape(f"{y.label} by {x.label}")
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}" font-size="12">']
    parts += _axes(across, up, x, y)
    for line in lines:
        parts += _drawn(line, across, up)
    if limit is not None:
        at = up.place(limit)
        parts.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#a23b52" '
            'stroke-dasharray="5 4"/>'
        )
    return "".join([*parts, "</svg>", _legend(lines)])


class _Scale:
    """Values to pixels."""

    def __init__(self, values: Sequence[float], log: bool, start: float, end: float) -> None:
        low, high = min(values), max(values)
        self.log = log
        self.low, self.high = (low, high) if log else (min(0.0, low), high)
        if self.high <= self.low:
            self.high = self.low * 2 if self.low > 0 else self.low + 1
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        """Pixels of a value."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        share = ((math.log10(value) if self.log else value) - low) / (high - low)
        return self._start + (self._end - self._start) * share

    def ticks(self) -> Iterator[float]:
        """Round values inside the range."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            yield from (10.0**power for power in range(first, last + 1))
            return
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / 4))
        step *= next(factor for factor in (1, 2, 5, 10) if (self.high - self.low) / (step * factor) <= 6)
        value = math.ceil(self.low / step) * step
        while value <= self.high * (1 + 1e-9):
            yield value
            value += step


def _axes(across: _Scale, up: _Scale, x: Axis, y: Axis) -> Iterator[str]:
    bottom = HEIGHT - _BOTTOM
    for value in up.ticks():
        at = up.place(value)
        yield f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e3e7eb"/>'
        yield f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:,g}</text>'
    for value in across.ticks():
        at = across.place(value)
        yield f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}" stroke="#e3e7eb"/>'
        yield f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{value:,g}</text>'
    yield f'<text x="{(_LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x.label)}</text>'
    turned = f'text-anchor="middle" transform="rotate(-90 14 {HEIGHT / 2:.0f})"'
    yield f'<text x="14" y="{HEIGHT / 2:.0f}" {turned}>{escape(y.label)}</text>'


def _drawn(line: Line, across: _Scale, up: _Scale) -> Iterator[str]:
    shown = [
        (across.place(a), up.place(b), a, b)
        for a, b in line.points
        if (a > 0 or not across.log) and (b > 0 or not up.log)
    ]
    if line.joined and len(shown) > 1:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b, _, _ in shown)
        dash = ' stroke-dasharray="4 3"' if line.dashed else ""
        yield f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2"{dash}/>'
    for index, (a, b, first, second) in enumerate(shown):
        name = line.names[index] if index < len(line.names) else line.label
        hover = f"<title>{escape(name)}: {first:,.4g}, {second:,.4g}</title>"
        yield f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{line.colour}">{hover}</circle>'


def _legend(lines: Sequence[Line]) -> str:
    keys = (f'<span style="color:{line.colour}">&#9679;</span> {escape(line.label)}' for line in lines)
    return f'<p class="key">{" &nbsp; ".join(keys)}</p>'
