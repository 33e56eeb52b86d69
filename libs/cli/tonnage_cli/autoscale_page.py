"""The runs of `tonnage autoscale` as one HTML page: replicas, queue, KV and misses over time, drawn as SVG."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from tonnage_core.autoscaling.simulation.comparison import Outcome
from tonnage_core.autoscaling.simulation.driver import Sample

WIDTH, HEIGHT, LEFT = 900, 150, 52
COLOURS = ("#1668b8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#5d6d7e")
PANELS: tuple[tuple[str, Callable[[Sample], float]], ...] = (
    ("replicas serving", lambda sample: sample.serving),
    ("replicas starting", lambda sample: sample.starting),
    ("requests waiting", lambda sample: sample.waiting),
    ("KV in use, mean", lambda sample: sample.kv_usage),
    ("requests out of SLO", lambda sample: sample.misses),
)


def page_of(document: dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    """A page that needs no other file: a table and one chart a quantity, a line a policy."""
    title = f"{document['trace']['name']} x {document['rate_factor']:g}"
    legend = " ".join(
        f'<span style="color:{_colour(index)}">&#9632; {escape(one.policy)}</span>'
        for index, one in enumerate(outcomes)
    )
    charts = "\n".join(_chart(name, read, outcomes) for name, read in PANELS)
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>\n'
        "<style>body{font:14px sans-serif;margin:24px}td,th{padding:2px 10px;text-align:right}"
        "svg{display:block;margin:6px 0}</style>\n"
        f"<h1>{escape(title)}</h1>\n{_table(document)}\n<p>{legend}</p>\n{charts}\n</html>\n"
    )


def _table(document: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{one['slo_attainment']:.2%}</td><td>{one['gpu_hours']:.2f}</td>"
        f"<td>{one['oracle_ratio'] or '-'}</td><td>{one['direction_changes']}</td></tr>"
        for name, one in document["policies"].items()
    )
    head = "<tr><th>policy</th><th>in SLO</th><th>GPU hours</th><th>of oracle</th><th>turns</th></tr>"
    return f"<table>{head}{rows}</table>"


def _chart(name: str, read: Callable[[Sample], float], outcomes: Sequence[Outcome]) -> str:
    lines = [[(sample.at_s, float(read(sample))) for sample in one.result.samples] for one in outcomes]
    span = max((at for line in lines for at, _ in line), default=0.0) or 1.0
    top = max((value for line in lines for _, value in line), default=0.0) or 1.0
    drawn = "".join(_line(line, span, top, _colour(index)) for index, line in enumerate(lines))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 34}" width="{WIDTH}" role="img" aria-label="{escape(name)}">'
        f'<text x="{LEFT}" y="12" font-size="12">{escape(name)}</text>'
        f'<text x="0" y="28" font-size="11">{top:.4g}</text><text x="0" y="{HEIGHT + 18}" font-size="11">0</text>'
        f'<path d="M{LEFT},18V{HEIGHT + 18}H{WIDTH}" fill="none" stroke="#888"/>{drawn}'
        f'<text x="{WIDTH - 60}" y="{HEIGHT + 32}" font-size="11">{span / 60:.0f} min</text></svg>'
    )


def _line(points: Sequence[tuple[float, float]], span: float, top: float, colour: str) -> str:
    placed = " ".join(
        f"{LEFT + (WIDTH - LEFT) * at / span:.1f},{HEIGHT + 18 - HEIGHT * value / top:.1f}" for at, value in points
    )
    return f'<polyline points="{placed}" fill="none" stroke="{colour}" stroke-width="1.3"/>'


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]
