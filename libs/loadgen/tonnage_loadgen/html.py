"""The report as one HTML page that needs nothing else: figures side by side, latency CDFs, the run over time."""

import html as text
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tonnage_loadgen.errors import ReportError
from tonnage_loadgen.page_style import STYLE
from tonnage_loadgen.svg import Axes, Series, line_chart

Documents = Mapping[str, Mapping[str, Any]]
"""Report documents by name: one for a replay, one a policy for `up`."""


def render(documents: Documents, path: Path) -> None:
    """Write the page; `ReportError` when the file cannot be written."""
    try:
        path.write_text(page(documents), encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{path}: cannot be written: {error.strerror}") from error


def page(documents: Documents) -> str:
    """The whole page as text."""
    names = list(documents)
    first: Mapping[str, Any] = next(iter(documents.values()), {})
    title = f"Tonnage {str(first.get('schema', 'tonnage.report/1')).removeprefix('tonnage.').partition('/')[0]} report"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{STYLE}</style></head><body><main><h1>{title}</h1>",
        _subtitle(first),
        *_void(documents),
        _legend(names),
        _table(documents),
        *_charts(documents),
        *_notes(documents),
        "</main></body></html>",
    ]
    return "".join(parts)


def _subtitle(document: Mapping[str, Any]) -> str:
    trace = (document.get("trace") or {}).get("name")
    facts = [f"trace {trace}" if trace else "", f"model {document['model']}" if document.get("model") else ""]
    facts += [f"seed {document.get('seed')}", f"version {document.get('version')}"]
    return f'<p class="sub">{text.escape(" · ".join(fact for fact in facts if fact))}</p>'


def _void(documents: Documents) -> Iterable[str]:
    for name, document in documents.items():
        client = document.get("client") or {}
        if client.get("bound"):
            yield f'<p class="void">VOID ({text.escape(name)}): {text.escape(str(client.get("reason")))}</p>'


def _legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    keys = (f'<span><i class="s{n % 6}"></i>{text.escape(name)}</span>' for n, name in enumerate(names))
    return f'<p class="legend">{"".join(keys)}</p>'


_ROWS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("Requests sent", ("requests", "sent"), "{:,}"),
    ("Requests ok", ("requests", "ok"), "{:,}"),
    ("Errors", ("requests", "errors"), "{:,}"),
    ("TTFT p50, ms", ("ttft_ms", "p50"), "{:,.1f}"),
    ("TTFT p90, ms", ("ttft_ms", "p90"), "{:,.1f}"),
    ("TTFT p99, ms", ("ttft_ms", "p99"), "{:,.1f}"),
    ("TPOT p50, ms", ("tpot_ms", "p50"), "{:,.2f}"),
    ("TPOT p99, ms", ("tpot_ms", "p99"), "{:,.2f}"),
    ("ITL p99, ms", ("itl_ms", "p99"), "{:,.2f}"),
    ("TTFT p99 below 1k prompt tokens, ms", ("classes", "short", "ttft_ms", "p99"), "{:,.1f}"),
    ("TTFT p99 below 8k", ("classes", "medium", "ttft_ms", "p99"), "{:,.1f}"),
    ("TTFT p99 from 8k on", ("classes", "long", "ttft_ms", "p99"), "{:,.1f}"),
    ("E2E p50, ms", ("e2e_ms", "p50"), "{:,.0f}"),
    ("E2E p99, ms", ("e2e_ms", "p99"), "{:,.0f}"),
    ("SLO attainment", ("slo_attainment",), "{:.1%}"),
    ("Goodput, requests/s", ("goodput_rps",), "{:,.3f}"),
    ("Prefix hit rate", ("prefix", "hit_rate"), "{:.1%}"),
    ("Ceiling hit rate", ("prefix", "ceiling_hit_rate"), "{:.1%}"),
    ("Output tokens", ("output_tokens",), "{:,}"),
    ("Duration, s", ("duration_s",), "{:,.1f}"),
    ("Client lateness p99, ms (wall)", ("client", "lateness_ms_p99"), "{:,.2f}"),
)


def _table(documents: Documents) -> str:
    head = "".join(f"<th>{text.escape(name)}</th>" for name in documents)
    rows = []
    for label, keys, form in _ROWS:
        cells = (_cell(document, keys, form) for document in documents.values())
        rows.append(f"<tr><th>{label}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    body = "".join(rows)
    return f'<div class="scroll"><table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(document: Mapping[str, Any], keys: tuple[str, ...], form: str) -> str:
    value: Any = document
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return "unknown" if value is None else form.format(value)


def _charts(documents: Documents) -> Iterable[str]:
    yield "<h2>Latency</h2><div class=charts>"
    for key, label in (("ttft_ms", "TTFT, ms"), ("tpot_ms", "TPOT, ms"), ("e2e_ms", "End to end, ms")):
        yield _figure(f"{label.rpartition(',')[0]}: share of requests at or below", _cdf(documents, key, label))
    yield "</div><h2>Over time</h2><div class=charts>"
    for keys, label, caption in (
        (("ttft_p50_ms", "ttft_p99_ms"), "TTFT, ms", "TTFT of the requests arriving then: p50, and p99 dashed"),
        (("in_flight",), "requests", "Requests in flight"),
        (("arrivals_rps",), "requests/s", "Arrivals"),
    ):
        yield _figure(caption, _over_time(documents, keys, label))
    yield "</div>"


def _figure(caption: str, chart: str) -> str:
    return f"<figure><figcaption>{text.escape(caption)}</figcaption>{chart}</figure>"


def _cdf(documents: Documents, key: str, label: str) -> str:
    series = []
    for n, (name, document) in enumerate(documents.items()):
        curve: list[float] = (document.get("timeline") or {}).get("curves", {}).get(key, [])
        steps = max(1, len(curve) - 1)
        series.append(Series(name, [(x, 100 * at / steps) for at, x in enumerate(curve)], f"s{n % 6}"))
    return line_chart(series, Axes(label, "% of requests", log_x=True, y_top=100.0))


def _over_time(documents: Documents, keys: tuple[str, ...], label: str) -> str:
    series = []
    for n, (name, document) in enumerate(documents.items()):
        line = document.get("timeline") or {}
        width = line.get("bin_s") or 0.0
        for m, key in enumerate(keys):
            points = [((at + 0.5) * width, y) for at, y in enumerate(line.get(key, [])) if y is not None]
            series.append(Series(name, points, f"s{n % 6}", dashed=m > 0))
    return line_chart(series, Axes("engine time, s", label))


def _notes(documents: Documents) -> Iterable[str]:
    said: dict[str, list[str]] = {}
    for name, document in documents.items():
        for note in document.get("notes") or ():
            said.setdefault(note, []).append(name)
    if said:
        yield "<h2>Notes</h2><ul>"
        for note, names in said.items():
            whose = "" if len(names) == len(documents) else f"{', '.join(names)}: "
            yield f"<li>{text.escape(whose + note)}</li>"
        yield "</ul>"
