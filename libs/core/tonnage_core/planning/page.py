"""The plan as one self-contained HTML page: the fleet, memory, roofline, curve, Pareto front, candidates, advice."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from tonnage_core.memory.page import memory_bar
from tonnage_core.planning.calibrated import calibration_lines
from tonnage_core.planning.charts import Axis, Line, chart

_BLUE, _ORANGE, _GREEN, _PURPLE = "#3b6ea5", "#c46f2b", "#3f8f5b", "#7d5ba6"
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1100px;padding:0 1rem;color:#1c2530}"
    "table{border-collapse:collapse;margin:1rem 0;font-size:.9em}"
    "td,th{padding:.25rem .7rem;border-bottom:1px solid #d5dbe1;text-align:left;vertical-align:top}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}pre{background:#f4f6f8;padding:.8rem;overflow:auto}"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:1rem}figure{margin:0}"
    ".no{color:#a23b52}.yes{color:#2c7a47}.key{font-size:.85em}.scroll{overflow-x:auto}"
)
_COLUMNS = (
    ("name", "configuration"),
    ("replicas", "replicas"),
    ("usd_per_hour", "$/h"),
    ("usd_per_mtok", "$/M tokens"),
    ("ttft_ms", "TTFT p99, ms"),
    ("tpot_ms", "TPOT p99, ms"),
    ("goodput_rps", "goodput, 1/s"),
    ("class", "class"),
    ("binding", "binding"),
    ("reason", "why"),
)


def plan_page(document: Mapping[str, Any]) -> str:
    """The page of a `tonnage.plan/1` document; every value is escaped and nothing is loaded from elsewhere."""
    asked = document["spec"]
    word, style = ("feasible", "yes") if document["feasible"] else ("not feasible", "no")
    head = f"{asked['model']} at {asked['rate_rps']:g} requests/s"
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>{escape(head)}: {word}</title><style>{_STYLE}</style><h1>{escape(head)}</h1>",
        f'<p><strong class="{style}">{word}</strong>. {escape(_slo(asked))}.</p>',
        *_best(document),
        *_step_times(document),
        *_ways_out(document),
        *_charts(document),
        "<h2>Candidates</h2>",
        f"<p>{escape(document['method'])} {document['considered']} were considered.</p>",
        _candidates(document["candidates"]),
        *_advice(document["advice"]),
        *_manifest(document),
        "</html>\n",
    ]
    return "".join(parts)


def _slo(asked: Mapping[str, Any]) -> str:
    limits = ", ".join(f"{name} within {limit:g} ms" for name, limit in asked["slo"].items())
    more = f"; {asked['fan_out']} calls a user" if asked["fan_out"] > 1 else ""
    return f"SLO: {limits}{more}; headroom {asked['headroom']:.0%}"


def _best(document: Mapping[str, Any]) -> Iterator[str]:
    best, mix = document["best"], document["mix"]
    if best is not None:
        yield f"<p><strong>{best['replicas']} x {escape(best['name'])}</strong>, {best['gpus']} GPUs, "
        yield f"${best['usd_per_hour']:,.2f} an hour, <strong>${best['usd_per_mtok']:.3f} a million tokens</strong>. "
        yield f"{escape(best['why'])}.</p>"
    if mix is not None:
        yield f"<p>Mix: {escape(mix['name'])}, ${mix['usd_per_hour']:,.2f} an hour, "
        yield f"${mix['usd_per_mtok']:.3f} a million tokens.</p>"


def _step_times(document: Mapping[str, Any]) -> Iterator[str]:
    lines = calibration_lines(document)
    if lines:
        yield f"<p>{escape('; '.join(lines))}.</p>"


def _ways_out(document: Mapping[str, Any]) -> Iterator[str]:
    if document["feasible"]:
        return
    yield f"<p>What binds: <strong>{escape(str(document['binding']))}</strong>. "
    yield f"{escape(str(document['reason']))}</p><ol>"
    for way in document["relaxations"]:
        yield f"<li><code>{escape(way['change'])}</code>: {escape(str(way['from']))} to {escape(str(way['to']))}. "
        yield f"{escape(way['text'])}</li>"
    yield "</ol>"


def _charts(document: Mapping[str, Any]) -> Iterator[str]:
    if document["best"] is not None:
        yield "<h2>Memory of one GPU</h2>" + memory_bar(document["best"]["memory"])
    yield '<div class="charts">'
    if document["curve"] is not None:
        yield from _curve(document)
        yield _figure("Roofline of matrix products", _roofline(document["roofline"]))
    yield _figure("Cost against TPOT: joined points are beaten by none on both", _pareto(document))
    yield "</div>"


def _figure(caption: str, drawing: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{drawing}</figure>"


def _curve(document: Mapping[str, Any]) -> Iterator[str]:
    points, slo = document["curve"]["points"], document["spec"]["slo"]
    yield _figure(
        f"TTFT of one replica: {document['curve']['why_not_full']}",
        chart(
            [
                Line("p99, engine model", _xy(points, "ttft_ms", "p99"), _BLUE),
                Line("mean, engine model", _xy(points, "ttft_ms", "mean"), _GREEN),
                Line("mean, M/M/1", _xy(points, "ttft_mean_ms_mm1"), _ORANGE, dashed=True),
                Line("mean, M/G/1", _xy(points, "ttft_mean_ms_mg1"), _PURPLE, dashed=True),
            ],
            Axis("requests/s"),
            Axis("TTFT, ms", log=True),
            _limit(slo, "ttft_ms"),
        ),
    )
    lines = [Line("p99", _xy(points, "tpot_ms", "p99"), _BLUE), Line("mean", _xy(points, "tpot_ms", "mean"), _GREEN)]
    yield _figure("TPOT of one replica", chart(lines, Axis("requests/s"), Axis("TPOT, ms"), _limit(slo, "tpot_ms")))
    goodput = [
        Line("within the SLO", _xy(points, "goodput_rps"), _GREEN),
        Line("offered", [(p["rate_rps"], p["rate_rps"]) for p in points], _ORANGE, dashed=True),
    ]
    yield _figure("Goodput of one replica", chart(goodput, Axis("requests/s offered"), Axis("requests/s")))


def _limit(slo: Mapping[str, float], metric: str) -> float | None:
    return next((limit for name, limit in slo.items() if name.startswith(metric)), None)


def _xy(points: Sequence[Mapping[str, Any]], *keys: str) -> list[tuple[float, float]]:
    found = []
    for point in points:
        value: Any = point
        for key in keys:
            value = None if value is None else value[key]
        if value is not None:
            found.append((point["rate_rps"], value))
    return found


def _roofline(document: Mapping[str, Any]) -> str:
    peak, gbps, ridge = document["peak_tflops"], document["hbm_gbps"], document["ridge_flop_per_byte"]
    points = [point for point in document["points"] if point["intensity"] > 0]
    right = max([ridge * 8, *(point["intensity"] for point in points)])
    roof = [(0.5, gbps * 0.5 / 1e3), (ridge, peak), (right, peak)]
    dots = Line(
        "steps",
        [(p["intensity"], p["tflops"]) for p in points],
        _BLUE,
        joined=False,
        names=[p["label"] for p in points],
    )
    return chart(
        [Line(f"roof of {document['gpu']}", roof, _ORANGE), dots], Axis("FLOP/byte", True), Axis("TFLOP/s", True)
    )


def _pareto(document: Mapping[str, Any]) -> str:
    known = [row for row in document["candidates"] if row["feasible"] and row["tpot_ms"] and row["usd_per_mtok"]]
    lines = []
    for label, kind, colour in (("engine model", "simulated", _BLUE), ("formula", "formula", _PURPLE)):
        rows = [row for row in known if row["class"] == kind]
        points = [(row["tpot_ms"], row["usd_per_mtok"]) for row in rows]
        lines.append(Line(label, points, colour, joined=False, names=[row["name"] for row in rows]))
    front = [(row["tpot_ms"], row["usd_per_mtok"]) for row in document["pareto"]]
    lines.append(Line("Pareto front", front, _GREEN))
    return chart(lines, Axis("TPOT p99, ms"), Axis("$ a million tokens"))


def _candidates(rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{escape(label)}" for _, label in _COLUMNS)
    body = "".join("<tr>" + "".join(_cell(row.get(field)) for field, _ in _COLUMNS) for row in rows)
    return f'<div class="scroll"><table><tr>{head}{body}</table></div>'


def _cell(value: Any) -> str:
    if value is None:
        return "<td>-"
    if isinstance(value, int | float):
        return f'<td class="n">{value:,.6g}'
    return f"<td>{escape(str(value))}"


def _advice(advice: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not advice:
        return
    yield "<h2>Advice</h2><table><tr><th>topic<th>saves<th>"
    for each in advice:
        saves = "-" if each["saves"] is None else f"{each['saves']:.0%}"
        yield f'<tr><td>{escape(each["topic"])}<td class="n">{saves}<td>{escape(each["text"])}'
    yield "</table>"


def _manifest(document: Mapping[str, Any]) -> Iterator[str]:
    best = document["best"]
    if best is None:
        return
    yield f"<h2>Run it</h2><pre>{escape(shlex.join(best['command']))}</pre>"
    yield f"<pre>{escape(_yaml(best['model_server']))}</pre>"
    problems = best["check"]["problems"]
    yield "<p>The memory formulas accept these flags.</p>" if not problems else f"<p>{escape('; '.join(problems))}</p>"


def _yaml(value: Any, depth: int = 0) -> str:
    """Nested mappings of scalars as YAML; texts are quoted, so that none is read as something else."""
    lines = []
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            lines.append(f"{'  ' * depth}{key}:\n{_yaml(inner, depth + 1)}")
        else:
            lines.append(f"{'  ' * depth}{key}: {_scalar(inner)}\n")
    return "".join(lines)


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return "{}" if isinstance(value, Mapping) else f"{value}"
