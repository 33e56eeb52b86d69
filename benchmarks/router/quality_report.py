"""Runs of routing quality side by side, and the gates they are held against."""

import statistics
from collections.abc import Sequence
from typing import Any

OURS = "tonnage prefix"
COLUMNS = (
    "router", "setting", "rate", "scale", "ok", "goodput/s", "attained", "ttft p50", "ttft p99", "tpot p50", "tpot p99",
    "hits/ceiling", "engine share", "late p99",
)  # fmt: skip


def merged(runs: Sequence[dict[str, Any]], gates: dict[str, float]) -> dict[str, Any]:
    """All runs, a row each; for every (time scale, rate) ours beside the best of the peers; the gates.

    A router with a setting counts by the median of its runs: when the last of the trace's longest answers ends moves a
    single run's goodput by 1 to 3 %.
    """
    rows = [row(run) for run in runs]
    measured = [r for r, run in zip(rows, runs, strict=True) if not run.get("tuning")]
    compared = [_compared(measured, key) for key in sorted({(r["time_scale"], r["rate"]) for r in measured})]
    compared = [c for c in compared if c is not None]
    return {"gates": _gates(compared, gates), "compared": compared, "rows": rows, "runs": list(runs)}


def row(run: dict[str, Any]) -> dict[str, Any]:
    """The figures that count of one run."""
    report = run["report"]
    prefix = report["prefix"]
    hits, best = prefix["hit_rate"], prefix["ceiling_hit_rate"]
    return {
        "router": run["router"],
        "setting": run["setting"],
        "rate": run["rate"],
        "time_scale": run["time_scale"],
        "tuning": bool(run.get("tuning")),
        "requests": report["requests"],
        "goodput_rps": report["goodput_rps"],
        "slo_attainment": report["slo_attainment"],
        "without_overhead": report.get("without_overhead"),
        "ttft_ms": {key: report["ttft_ms"][key] for key in ("p50", "p99")},
        "tpot_ms": {key: report["tpot_ms"][key] for key in ("p50", "p99")},
        "hit_tokens": prefix["hit_tokens"],
        "hits_of_ceiling": round(hits / best, 4) if hits is not None and best else None,
        "duration_s": report["duration_s"],
        "busiest_engine": max(run["prompt_share_by_engine"], default=None),
        "client_lateness_ms_p99": report["client"]["lateness_ms_p99"],
        "machine_busy_share": run["machine"]["busy_share"],
    }


def _compared(rows: Sequence[dict[str, Any]], key: tuple[float, float]) -> dict[str, Any] | None:
    here = [r for r in rows if (r["time_scale"], r["rate"]) == key]
    ours = [r for r in here if r["router"] == OURS]
    peers = [r for r in here if not r["router"].startswith("tonnage")]
    if not ours or not peers:
        return None
    mine, best = _medians(ours)[0], max(_medians(peers), key=lambda r: r["goodput_rps"])
    worst, luckiest = min(r["goodput_rps"] for r in ours), max(r["goodput_rps"] for r in peers)
    return {
        "time_scale": key[0],
        "rate": key[1],
        "runs": len(ours),
        "best_peer": f"{best['router']}, {best['setting']}",
        "best_peer_runs": best["runs"],
        "peers": len(peers),
        "goodput_ratio": _ratio(mine["goodput_rps"], best["goodput_rps"]),
        "goodput_ratio_of_our_worst_and_their_best_run": _ratio(worst, luckiest),
        "goodput_ratio_without_overhead": _ratio(mine["bare_rps"], best["bare_rps"]),
        "ttft_p99_ratio": _ratio(mine["ttft_p99_ms"], best["ttft_p99_ms"]),
        "lowest_peer_ttft_p99_ms": min(r["ttft_ms"]["p99"] for r in peers),
        "hits_of_ceiling": mine["hits_of_ceiling"],
        "slo_attainment": [mine["slo_attainment"], best["slo_attainment"]],
    }


def _medians(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each router and setting: the medians of its runs, None where a run lacks the figure."""
    found = []
    for router, setting in sorted({(r["router"], r["setting"]) for r in rows}):
        runs = [r for r in rows if (r["router"], r["setting"]) == (router, setting)]
        bare = [r["without_overhead"]["goodput_rps"] for r in runs if r["without_overhead"]]
        found.append(
            {
                "router": router,
                "setting": setting,
                "runs": len(runs),
                "goodput_rps": statistics.median(r["goodput_rps"] for r in runs),
                "slo_attainment": statistics.median(r["slo_attainment"] for r in runs),
                "ttft_p99_ms": statistics.median(r["ttft_ms"]["p99"] for r in runs),
                "hits_of_ceiling": _median_of([r["hits_of_ceiling"] for r in runs]),
                "bare_rps": statistics.median(bare) if bare else None,
            }
        )
    return found


def _median_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 4) if len(known) == len(values) else None


def _ratio(one: float | None, other: float | None) -> float | None:
    return round(one / other, 4) if one and other else None


def _gates(compared: Sequence[dict[str, Any]], gates: dict[str, float]) -> dict[str, dict[str, Any]]:
    at = [c for c in compared if c["rate"] == gates["rate"]]
    every = [c["goodput_ratio"] for c in compared if c["goodput_ratio"] is not None]
    limits = {
        "goodput at the gate's rate over the best peer's": (min, "goodput_ratio", "goodput_ratio", True),
        "TTFT p99 at the gate's rate over that peer's": (max, "ttft_p99_ratio", "ttft_p99_ratio", False),
        "hits of the ceiling at the gate's rate": (min, "hits_of_ceiling", "hit_share", True),
    }
    found: dict[str, dict[str, Any]] = {}
    for name, (worst, field, limit, at_least) in limits.items():
        values = [c[field] for c in at if c[field] is not None]
        found[name] = _gate(worst(values) if values else None, gates[limit], at_least=at_least)
    name = "goodput at any rate over the best peer's"
    found[name] = _gate(min(every) if every else None, gates["goodput_floor"], at_least=True)
    return found


def _gate(value: float | None, limit: float, *, at_least: bool) -> dict[str, Any]:
    """A gate that was not measured does not hold."""
    holds = value is not None and (value >= limit if at_least else value <= limit)
    return {"value": value, "limit": limit, "at": "least" if at_least else "most", "holds": holds}


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Runs as aligned lines for a terminal."""
    lines = [COLUMNS, *(_line(row(run)) for run in runs)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _line(r: dict[str, Any]) -> tuple[str, ...]:
    values = (
        r["router"], r["setting"], r["rate"], r["time_scale"], f"{r['requests']['ok']}/{r['requests']['sent']}",
        r["goodput_rps"], r["slo_attainment"], r["ttft_ms"]["p50"], r["ttft_ms"]["p99"], r["tpot_ms"]["p50"],
        r["tpot_ms"]["p99"], r["hits_of_ceiling"], r["busiest_engine"], r["client_lateness_ms_p99"],
    )  # fmt: skip
    return tuple(f"{value:.3f}" if isinstance(value, float) else str(value) for value in values)
