"""The report of a job from the results of its runs, in the shape of `tonnage bench --json`; a pure function of them."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tonnage_bench.ledger import Step
from tonnage_core.benchmarking.capacity import Found, Trial
from tonnage_core.benchmarking.series import Series, capacity_found, next_ask

Results = Sequence[tuple[Step, dict[str, Any]]]
CURVE = ("goodput_rps", "slo_attainment", "percentiles", "more_requests_needed", "notes")


def report_of(series: Series, results: Results) -> dict[str, Any] | None:
    """The best run's document with `capacity`, `curve`, `runs` and `accuracy_gate` beside; None without a run."""
    runs = [(step, result) for step, result in results if step.ask.kind != "gate" and "document" in result]
    if not runs:
        return None
    made = [step.made for step, _ in results]
    found = capacity_found(series, made)
    document = dict(_main(runs, found)[1]["document"])
    if found is not None:
        trials = [asdict(Trial(step.ask.rate or 0.0, step.met)) for step, _ in runs if step.ask.kind == "search"]
        document["capacity"] = asdict(found) | {"runs": len(trials), "trials": trials}
    if (curve := [_curve_row(step, result["document"]) for step, result in _open(runs)]) and (series.rates or found):
        document["curve"] = sorted(curve, key=lambda row: float(row["rate_rps"]))
    if users := [{"users": step.ask.users} | result["document"] for step, result in runs if step.ask.kind == "users"]:
        document["runs"] = users
    for step, result in results:
        if step.ask.kind == "gate" and "document" in result:
            document["accuracy_gate"] = result["document"]
    document["complete"] = next_ask(series, made) is None
    return document


def points_of(results: Results) -> str:
    """Every bench point as one CSV; empty when there is none."""
    rows: list[list[str]] = []
    for _, result in results:
        found = list(csv.reader(io.StringIO(result.get("points") or "")))
        rows += found[1:] if rows else found
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue() if len(rows) > 1 else ""


def _main(runs: Results, found: Found | None) -> tuple[Step, dict[str, Any]]:
    """The run a reader looks at first: the one at capacity, else the highest rate that met the SLO, else the last."""
    if found is not None and found.capacity is not None:
        at = [each for each in runs if each[0].ask.rate == found.capacity]
        return max(at, key=lambda each: bool(each[0].met))
    met = [each for each in _open(runs) if each[0].met]
    return max(met, key=lambda each: each[0].ask.rate or 0.0) if met else runs[-1]


def _open(runs: Results) -> list[tuple[Step, dict[str, Any]]]:
    return [each for each in runs if each[0].ask.kind in ("search", "rate")]


def _curve_row(step: Step, document: dict[str, Any]) -> dict[str, Any]:
    return {
        "rate_rps": step.ask.rate,
        "met": step.met,
        "reason": step.ask.reason,
        "concurrency": document["concurrency"]["mean"],
        "steady": document["steady"]["steady"],
        **{name: document[name] for name in CURVE},
    }
