"""Runs of routing quality side by side, and the gates they are held against."""

from collections.abc import Sequence
from typing import Any

OURS = "tonnage prefix"
COLUMNS = (
    "router", "setting", "rate", "scale", "ok", "goodput/s", "attained", "ttft p50", "ttft p99", "tpot p50", "tpot p99",
    "hits/ceiling", "engine share", "late p99",
)  # fmt: skip


def merged(runs: Sequence[dict[str, Any]], gates: dict[str, float]) -> dict[str, Any]:
    """All runs, a row each; for every (time scale, rate) our worst run beside the best of the peers; the gates."""
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
    mine, best = min(ours, key=lambda r: r["goodput_rps"]), max(peers, key=lambda r: r["goodput_rps"])
    bare = [r["without_overhead"]["goodput_rps"] if r["without_overhead"] else None for r in (mine, best)]
    return {
        "time_scale": key[0],
        "rate": key[1],
        "best_peer": f"{best['router']}, {best['setting']}",
        "peers": len(peers),
        "goodput_ratio": round(mine["goodput_rps"] / best["goodput_rps"], 4) if best["goodput_rps"] else None,
        "goodput_ratio_without_overhead": round(bare[0] / bare[1], 4) if bare[0] and bare[1] else None,
        "ttft_p99_ratio": round(mine["ttft_ms"]["p99"] / best["ttft_ms"]["p99"], 4),
        "lowest_peer_ttft_p99_ms": min(r["ttft_ms"]["p99"] for r in peers),
        "hits_of_ceiling": mine["hits_of_ceiling"],
    }


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
