"""Learn the time model's coefficients from public measurements, and relearn them without each model and each card.

usage: python benchmarks/planner/fit.py TRUTH.csv --configs DIR [--table FACTORS.json]
       [--leave-out model] [--leave-out gpu] [--out RESULT.json]

Every fit starts from the prior, also those of a fold, so a fold's answers owe nothing to the rows it leaves out. Models
are left out with everything that shares their architecture (layers, hidden size, vocabulary), whatever its precision.
The widths of intervals are learned in the same way: from the errors on every other group, each left out in turn beside
the group asked about, so that nothing of it enters coefficients or widths.
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
from tonnage_core.prediction.intervals import LEVELS, classes, widths
from tonnage_core.prediction.learn import folds, learn, learned_widths, relearn, slopes_at
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


def held_out(samples: list[Sample], keys: list[Hashable]) -> list[dict[str, float]]:
    """A table for every point that never saw its group."""
    by_sample = {id(sample): key for sample, key in zip(samples, keys, strict=True)}
    tables: list[dict[str, float]] = [{} for _ in samples]
    for left, table in folds(samples, lambda sample: by_sample[id(sample)]):
        for index in left:
            tables[index] = table
    return tables


def architecture(point: Point) -> Hashable:
    shape = point.request.shape
    return shape.layers, shape.hidden, shape.vocab


def shipped_halves(points: list[Point]) -> list[tuple[float, float]]:
    """Half widths (TPOT, TTFT; log) that the product answers with."""
    found = [widths(point.request, slots_of(point.request)) for point in points]
    return [(each.tpot, each.ttft) for each in found]


def members(keys: list[Hashable]) -> dict[Hashable, list[int]]:
    """Indices of each group."""
    found: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        found.setdefault(key, []).append(index)
    return found


def beside(
    points: list[Point], samples: list[Sample], left: list[int], table: dict[str, float]
) -> dict[str, dict[str, float]]:
    """Widths by metric and class from every architecture and every card, each left out in turn beside `left`."""
    slopes, out, groups = slopes_at(samples, table), set(left), 0
    found: dict[str, list[tuple[str, float]]] = {metric: [] for metric in LEVELS}
    for group in GROUPS.values():
        for inner in members([group(point) for point in points]).values():
            rest = [index for index in inner if index not in out]
            if not rest:
                continue
            groups += 1
            again = relearn(samples, out | set(inner), table, slopes)
            pairs = errors([points[i] for i in rest], [samples[i] for i in rest], [again] * len(rest))
            for index, pair in zip(rest, pairs, strict=True):
                named = classes(points[index].request, slots_of(points[index].request))
                for metric, error in zip(LEVELS, pair, strict=True):
                    found[metric].append((named[metric], error))
    return {metric: learned_widths(found[metric], levels, groups) for metric, levels in LEVELS.items()}


def learned_halves(
    points: list[Point], samples: list[Sample], keys: list[Hashable], tables: list[dict[str, float]]
) -> tuple[list[tuple[float, float]], dict[str, Any]]:
    """Half widths of every point that never saw its group, and the widths of each group."""
    halves = [(0.0, 0.0)] * len(points)
    by_group: dict[str, Any] = {}
    for key, left in members(keys).items():
        learned = beside(points, samples, left, tables[left[0]])
        by_group[str(key)] = {metric: {n: round(w, 3) for n, w in each.items()} for metric, each in learned.items()}
        for index in left:
            named = classes(points[index].request, slots_of(points[index].request))
            halves[index] = (learned["tpot"][named["tpot"]], learned["ttft"][named["ttft"]])
    return halves, by_group


def summary(
    points: list[Point], found: list[tuple[float, float]], sure: list[tuple[float, float]]
) -> dict[str, dict[str, Any]]:
    """Error, and how 90 % intervals of these half widths do: coverage, and the median of half the width over the
    value."""
    result: dict[str, dict[str, Any]] = {}
    named = [classes(point.request, slots_of(point.request)) for point in points]
    for index, name in enumerate(("tpot", "ttft")):
        halves = [each[index] for each in sure]
        sizes = sorted(abs(exp(error[index]) - 1) * 100 for error in found)
        logs = sorted(abs(error[index]) for error in found)
        held = [abs(error[index]) <= half for error, half in zip(found, halves, strict=True)]
        result[name] = {
            "n": len(sizes),
            "median_pct": round(median(sizes), 2),
            "mean_pct": round(mean(sizes), 2),
            "p90_log": round(logs[int(0.9 * len(logs))], 3),
            "coverage90": round(mean(held), 3),
            "half_width_pct": round(100 * median(map(sinh, halves)), 1),
            "by_class": {
                kind: {
                    "n": sum(each[name] == kind for each in named),
                    "coverage": round(mean(ok for ok, each in zip(held, named, strict=True) if each[name] == kind), 3),
                    "half_log": round(
                        median(half for half, each in zip(halves, named, strict=True) if each[name] == kind), 3
                    ),
                }
                for kind in LEVELS[name]
            },
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
        found = errors(points, samples, [table] * len(points))
        document["in_sample"] = summary(points, found, shipped_halves(points))
        options.table.write_text(json.dumps({name: round(value, 4) for name, value in table.items()}, indent=1))
    for name in options.leave_out:
        keys = [GROUPS[name](point) for point in points]
        tables = held_out(samples, keys)
        found = errors(points, samples, tables)
        halves, by_group = learned_halves(points, samples, keys, tables)
        document[f"leave_one_{name}_out"] = summary(points, found, halves)
        document[f"leave_one_{name}_out_with_shipped_widths"] = summary(points, found, shipped_halves(points))
        document[f"leave_one_{name}_out_widths"] = by_group
        document[f"leave_one_{name}_out_rows"] = [
            [point.ids[0], *(round(value, 4) for value in (*error, *half))]
            for point, error, half in zip(points, found, halves, strict=True)
        ]
    print(json.dumps({name: value for name, value in document.items() if not name.endswith("rows")}, indent=1))
    if options.out:
        options.out.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
