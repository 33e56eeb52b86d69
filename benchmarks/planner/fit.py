"""Learn the time model's coefficients from public measurements, and relearn them without each model and each card.

usage: python benchmarks/planner/fit.py TRUTH.csv --configs DIR [--table FACTORS.json]
       [--leave-out model] [--leave-out gpu] [--out RESULT.json]

Every fit starts from the prior, also those of a fold, so a fold's answers owe nothing to the rows it leaves out. Models
are left out with everything that shares their architecture (layers, hidden size, vocabulary), whatever its precision.
"""

import argparse
import json
from collections.abc import Callable, Hashable
from math import exp, log, sinh
from pathlib import Path
from statistics import mean, median
from typing import Any

from tonnage_cli.accuracy import read_cases
from tonnage_core.prediction.coefficients import from_table
from tonnage_core.prediction.fit import Sample, state_of
from tonnage_core.prediction.intervals import widths
from tonnage_core.prediction.learn import folds, learn
from tonnage_core.prediction.slots import slots_of
from tonnage_core.prediction.truth import Point, points_of, sample_of


def read_points(truth: Path, configs: Path | None) -> list[Point]:
    """The measured points of a truth file whose model and card are known."""
    cases = read_cases(truth, configs)
    return points_of([(case.row, case.shape, case.gpu) for case in cases if case.shape and case.gpu])


def errors(points: list[Point], samples: list[Sample], tables: list[dict[str, float]]) -> list[tuple[float, float]]:
    """(TPOT, TTFT) log errors of every point, each with its own table."""
    found = []
    for point, sample, table in zip(points, samples, tables, strict=True):
        request = point.request
        state = state_of(sample, from_table(table, request.engine, request.gpu))
        found.append((_log_error(state.tpot_s * 1e3, point.tpot_ms), _log_error(state.ttft_s * 1e3, point.ttft_ms)))
    return found


def _log_error(value: float, truth: float | None) -> float:
    return log(value / truth) if truth else 0.0


def held_out(
    points: list[Point], samples: list[Sample], group: Callable[[Point], Hashable]
) -> list[tuple[float, float]]:
    """Errors of every point with a table that never saw its group."""
    keys = {id(sample): group(point) for point, sample in zip(points, samples, strict=True)}
    tables: list[dict[str, float]] = [{} for _ in samples]
    for left, table in folds(samples, lambda sample: keys[id(sample)]):
        for index in left:
            tables[index] = table
    return errors(points, samples, tables)


def architecture(point: Point) -> Hashable:
    shape = point.request.shape
    return shape.layers, shape.hidden, shape.vocab


def summary(points: list[Point], found: list[tuple[float, float]]) -> dict[str, dict[str, float]]:
    """Error, and how the answers' own 90 % intervals do: coverage, and the median of half the width over the value."""
    result = {}
    sure = [widths(point.request, slots_of(point.request)) for point in points]
    for index, name in enumerate(("tpot", "ttft")):
        halves = [(each.tpot, each.ttft)[index] for each in sure]
        sizes = sorted(abs(exp(error[index]) - 1) * 100 for error in found)
        logs = sorted(abs(error[index]) for error in found)
        result[name] = {
            "n": len(sizes),
            "median_pct": round(median(sizes), 2),
            "mean_pct": round(mean(sizes), 2),
            "p90_log": round(logs[int(0.9 * len(logs))], 3),
            "coverage90": round(mean(abs(e[index]) <= half for e, half in zip(found, halves, strict=True)), 3),
            "half_width_pct": round(100 * median(map(sinh, halves)), 1),
        }
    return result


GROUPS: dict[str, Callable[[Point], Hashable]] = {"model": architecture, "gpu": lambda point: point.request.gpu.name}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("truth", type=Path)
    parser.add_argument("--configs", type=Path)
    parser.add_argument("--table", type=Path, help="write the learned factors as JSON")
    parser.add_argument("--leave-out", choices=sorted(GROUPS), action="append", default=[])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    points = read_points(options.truth, options.configs)
    samples = [sample_of(point) for point in points]
    document: dict[str, Any] = {"points": len(points)}
    if options.table:
        table = learn(samples)
        document["in_sample"] = summary(points, errors(points, samples, [table] * len(points)))
        options.table.write_text(json.dumps({name: round(value, 4) for name, value in table.items()}, indent=1))
    for name in options.leave_out:
        found = held_out(points, samples, GROUPS[name])
        rows = [[point.ids[0], round(a, 4), round(b, 4)] for point, (a, b) in zip(points, found, strict=True)]
        document[f"leave_one_{name}_out"] = summary(points, found) | {"rows": rows}
    print(json.dumps({name: value for name, value in document.items() if name != "rows"})[:2000])
    if options.out:
        options.out.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
