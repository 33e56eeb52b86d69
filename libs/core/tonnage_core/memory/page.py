"""The memory document as one self-contained HTML page: a bar per pipeline stage, the numbers, the derivation."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

PARTS = (
    ("weight_gib", "weights", "#3b6ea5"),
    ("activation_peak_gib", "activation peak", "#c46f2b"),
    ("non_torch_gib", "outside torch", "#7d5ba6"),
    ("cuda_graph_gib", "CUDA graphs", "#a23b52"),
    ("kv_cache_gib", "KV pool", "#3f8f5b"),
)
"""Field of a stage, what it is called, its colour."""
_WIDTH, _HEIGHT, _GAP, _LEFT = 900, 44, 30, 70
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1000px;padding:0 1rem;color:#1c2530}"
    "table{border-collapse:collapse;margin:1rem 0}"
    "td,th{padding:.25rem .8rem;border-bottom:1px solid #d5dbe1;text-align:left}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}code{font-size:.9em}.no{color:#a23b52}.yes{color:#2c7a47}"
)
_NUMBERS = (
    ("kv_cache_gib", "KV pool", "GiB per GPU"),
    ("kv_cache_blocks", "KV blocks", ""),
    ("kv_cache_tokens", "KV tokens", ""),
    ("max_concurrency_x", "sequences of max_model_len", ""),
    ("kv_bytes_per_token", "KV of one token", "bytes per GPU"),
    ("fixed_gib_per_request", "least KV of a request", "GiB per GPU"),
    ("max_fitting_model_len", "longest max_model_len that fits", "tokens"),
)


def memory_page(document: Mapping[str, Any]) -> str:
    """The page; every value is escaped and nothing is loaded from elsewhere."""
    fits = document.get("fits")
    word = "unknown" if fits is None else "fits" if fits else "does not fit"
    style = "yes" if fits else "no"
    head = f"{document.get('model')} on {document.get('gpu') or 'an unnamed card'}, {document.get('engine')}"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(head)}: {word}</title><style>{_STYLE}</style>"
        f'<h1>{escape(head)}</h1><p><strong class="{style}">{word}</strong>: {escape(str(document.get("reason")))}</p>'
        + memory_bar(document)
        + _table([(label, document.get(field), unit) for field, label, unit in _NUMBERS])
        + "".join(f"<p>Note: {escape(str(note))}</p>" for note in document.get("notes") or ())
        + "<h2>Derivation</h2>"
        + _derivation(document.get("steps") or ())
        + "</html>\n"
    )


def memory_bar(document: Mapping[str, Any]) -> str:
    """An SVG with one bar a stage, to the scale of the card; a line marks the memory fraction."""
    stages: Sequence[Mapping[str, Any]] = document.get("stages") or ()
    used = max((sum(max(0.0, stage.get(part) or 0.0) for part, _, _ in PARTS) for stage in stages), default=0.0)
    total = max(document.get("memory_gib") or 0.0, used, 1e-9)
    height = len(stages) * (_HEIGHT + _GAP) + 50
    width = _WIDTH + _LEFT + 10
    lines = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="memory per GPU" font-size="13">']
    for row, stage in enumerate(stages):
        lines += _bar(stage, row * (_HEIGHT + _GAP) + 20, total)
    share, memory = document.get("gpu_memory_utilization"), document.get("memory_gib")
    if share and memory:
        at = _LEFT + _WIDTH * share * memory / total
        bottom = height - 40
        lines.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="8" y2="{bottom}" stroke="#1c2530" stroke-dasharray="4 3"/>'
        )
        lines.append(
            f'<text x="{at:.1f}" y="{bottom + 12}" text-anchor="end">fraction {share:g} of {memory:g} GiB</text>'
        )
    lines += _legend(height - 8)
    return "".join(lines) + "</svg>"


def _bar(stage: Mapping[str, Any], top: int, total: float) -> list[str]:
    lines = [f'<text x="0" y="{top + 27}">stage {escape(str(stage.get("stage", 0)))}</text>']
    left = float(_LEFT)
    for field, label, colour in PARTS:
        size = stage.get(field)
        if not size or size <= 0:
            continue
        width = _WIDTH * size / total
        tip = f"<title>{label}: {size:.2f} GiB</title>"
        place = f'x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_HEIGHT}"'
        lines.append(f'<rect {place} fill="{colour}">{tip}</rect>')
        if width > 60:
            lines.append(f'<text x="{left + 6:.1f}" y="{top + 27}" fill="#fff">{size:.2f}</text>')
        left += width
    lines.append(f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#1c2530"/>')
    return lines


def _legend(top: int) -> list[str]:
    lines, left = [], _LEFT
    for _, label, colour in PARTS:
        lines.append(f'<rect x="{left}" y="{top - 11}" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{left + 17}" y="{top}">{label}</text>')
        left += 40 + 8 * len(label)
    return lines


def _number(value: Any) -> str:
    if value is None:
        return "unknown"
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if isinstance(value, float) else escape(str(value))
    )


def _table(rows: Sequence[tuple[str, Any, str]]) -> str:
    cells = (f'<tr><td>{escape(a)}<td class="n">{_number(b)}<td>{escape(c)}' for a, b, c in rows)
    return "<table>" + "".join(cells) + "</table>"


def _derivation(steps: Sequence[Mapping[str, Any]]) -> str:
    cells = (
        f"<tr><td>{escape(str(step.get('name')))}<td><code>{escape(str(step.get('formula')))}</code>"
        f'<td class="n">{_number(step.get("value"))}<td>{escape(str(step.get("unit")))}'
        for step in steps
    )
    return "<table><tr><th>step<th>formula<th>value<th>unit" + "".join(cells) + "</table>"
