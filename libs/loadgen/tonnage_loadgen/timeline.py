"""The run over time and its latency curves, small enough to live in the report: the HTML page draws them."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

from tonnage_core.slo import RequestRecord, percentile

BINS = 60
CURVE_POINTS = 101


def timeline(records: Sequence[RequestRecord], time_scale: float = 1.0) -> dict[str, Any]:
    """Per bin of engine time: arrivals a second, requests in flight at its end, TTFT p50 and p99 of its arrivals.

    A bin without a first token has no TTFT (None). `curves` holds, for each latency, its 0th to 100th percentile in ms.
    """
    good = [record for record in records if record.ok]
    curves = {
        "ttft_ms": _curve((r.ttft_s for r in good), time_scale),
        "tpot_ms": _curve((r.tpot_s for r in good), time_scale),
        "e2e_ms": _curve((r.e2e_s for r in good), time_scale),
    }
    if not records:
        return {
            "bin_s": None,
            "arrivals_rps": [],
            "in_flight": [],
            "ttft_p50_ms": [],
            "ttft_p99_ms": [],
            "curves": curves,
        }
    starts = sorted(record.intended_s for record in records)
    ends = sorted(max(t for t in (r.intended_s, r.sent_s, r.last_s) if t is not None) for r in records)
    width = max(ends[-1], 1e-9) / BINS
    grouped: list[list[float]] = [[] for _ in range(BINS)]
    for record in good:
        if record.ttft_s is not None:
            grouped[min(int(record.intended_s / width), BINS - 1)].append(record.ttft_s)
    edges = [width * (n + 1) for n in range(BINS)]
    begun = [bisect_right(starts, edge) for edge in edges]
    return {
        "bin_s": width * time_scale,
        "arrivals_rps": [
            round((now - before) / (width * time_scale), 4) for before, now in zip([0, *begun], begun, strict=False)
        ],
        "in_flight": [count - bisect_right(ends, edge) for count, edge in zip(begun, edges, strict=True)],
        "ttft_p50_ms": [_of(group, 50, time_scale) for group in grouped],
        "ttft_p99_ms": [_of(group, 99, time_scale) for group in grouped],
        "curves": curves,
    }


def _of(group: list[float], percent: float, time_scale: float) -> float | None:
    value = percentile(sorted(group), percent)
    return None if value is None else round(value * time_scale * 1e3, 3)


def _curve(values: Iterable[float | None], time_scale: float) -> list[float]:
    ordered = sorted(value for value in values if value is not None)
    points = (percentile(ordered, 100 * n / (CURVE_POINTS - 1)) for n in range(CURVE_POINTS))
    return [round(point * time_scale * 1e3, 3) for point in points if point is not None]
