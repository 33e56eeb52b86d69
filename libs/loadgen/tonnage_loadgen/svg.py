"""Line charts as inline SVG text: axes with round numbers, one path a series, a title for each on hover."""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 12, 40
Point = tuple[float, float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """Named points; None breaks the line. `style` is a CSS class of the page; `dashed` sets it apart."""

    name: str
    points: Sequence[Point]
    style: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Axes:
    """What the axes show; `log_x` for values over several powers of ten."""

    x_label: str
    y_label: str
    log_x: bool = False
    y_top: float | None = None


def line_chart(series: Sequence[Series], axes: Axes) -> str:
    """An `<svg>` element, or a sentence when no series has a point."""
    known = [(x, y) for each in series for x, y in each.points if y is not None and (x > 0 or not axes.log_x)]
    if not known:
        return '<p class="none">Nothing was measured.</p>'
    x_range = _x_range([x for x, _ in known], log=axes.log_x)
    y_top = axes.y_top or _round_up(max(y for _, y in known))
    place = _Place(x_range, y_top, axes.log_x)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(axes.y_label)} by '
        f'{html.escape(axes.x_label)}">',
        *_grid(place, axes),
        *(_path(each, place) for each in series),
        "</svg>",
    ]
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Place:
    x_range: tuple[float, float]
    y_top: float
    log: bool

    def x(self, value: float) -> float:
        low, high = self.x_range
        if self.log:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.y_top * (HEIGHT - TOP - BOTTOM)


def _x_range(values: list[float], *, log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if log:
        low, high = _log_step(low, up=False), _log_step(high, up=True)
    else:
        low = min(0.0, low)
    return (low, high) if high > low else (low, low * 10 if log else low + 1)


def _log_steps(low: float, high: float) -> list[float]:
    """1, 2 and 5 times each power of ten from `low` to `high`."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    return [step * 10.0**power for power in powers for step in (1, 2, 5)]


def _log_step(value: float, *, up: bool) -> float:
    steps = _log_steps(value, value)
    if up:
        return next(step for step in steps if step >= value * 0.9999)
    return next(step for step in reversed(steps) if step <= value * 1.0001)


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * 0.999)


def _ticks(low: float, high: float, *, log: bool) -> Iterable[float]:
    if log:
        inside = [step for step in _log_steps(low, high) if low * 0.999 <= step <= high * 1.001]
        return inside if len(inside) <= 8 else [step for step in inside if f"{step:e}".startswith("1")]
    step = _round_up((high - low) / 5)
    return [low + n * step for n in range(int((high - low) / step + 1e-9) + 1)]


def _grid(place: _Place, axes: Axes) -> Iterable[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for tick in _ticks(0.0, place.y_top, log=False):
        y = place.y(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(tick)}</text>'
    for tick in _ticks(*place.x_range, log=place.log):
        x = place.x(tick)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{_short(tick)}</text>'
    yield f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{html.escape(axes.x_label)}</text>'
    middle = (TOP + bottom) / 2
    turned = f"translate(12 {middle}) rotate(-90)"
    yield f'<text transform="{turned}" text-anchor="middle">{html.escape(axes.y_label)}</text>'


def _path(series: Series, place: _Place) -> str:
    steps, pen_down = [], False
    for x, y in series.points:
        if y is None or (place.log and x <= 0):
            pen_down = False
            continue
        steps.append(f"{'L' if pen_down else 'M'}{place.x(x):.1f} {place.y(min(y, place.y_top)):.1f}")
        pen_down = True
    dash = ' stroke-dasharray="5 3"' if series.dashed else ""
    return (
        f'<path class="line {series.style}" d="{"".join(steps)}"{dash}><title>{html.escape(series.name)}</title></path>'
    )


def _short(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 1e4 else f"{value:.6g}"
