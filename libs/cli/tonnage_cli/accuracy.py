"""`tonnage accuracy`: every row of a truth file predicted and compared: memory, starts and latency."""

import csv
import os
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from tonnage_cli.output import json_option, print_json, print_table
from tonnage_core.errors import BadInputError
from tonnage_core.hardware import GpuSpec, UnknownGpuError, find_gpu
from tonnage_core.memory.accuracy import ROW_FIELDS, Answer, Case, accuracy_document, row_record, summarise
from tonnage_core.memory.leave_out import leave_one_model_out
from tonnage_core.memory.truth import TruthError, TruthRow, truth_row
from tonnage_core.models import ModelShape
from tonnage_core.prediction.accuracy import LatencyScores, latency_scores
from tonnage_core.prediction.truth import LATENCY
from tonnage_runtime.catalogue import load_model, model_names

LARGEST_TRUTH = 256 << 20
_COLUMNS = {
    "n": "n",
    "mae_pct": "MAE %",
    "median_pct": "median %",
    "p90_pct": "p90 %",
    "max_pct": "max %",
    "bias_pct": "bias %",
    "coverage90": "inside",
    "half_width_pct": "+- %",
}
_TITLES = {
    "given_pool": "Given the pool",
    "from_flags": "From flags alone",
    "summary": "As the rows ask",
    "uncalibrated": "Curves with too few points to calibrate",
}


@click.command()
@click.argument("truth", type=click.Path(path_type=Path))
@click.option("--configs", type=click.Path(path_type=Path), help="Folder of NAME.json; by default the catalogue.")
@click.option(
    "--calibrate",
    type=click.IntRange(0, 16),
    default=0,
    show_default=True,
    help="Measured points of each latency curve to refit the time model with.",
)
@click.option("--rows", "rows_file", type=click.Path(path_type=Path), help="Write each row's prediction as CSV.")
@click.option("--leave-one-model-out", "leave_out", is_flag=True, help="Refit constants without each model.")
@json_option
def command(
    truth: Path, configs: Path | None, calibrate: int, rows_file: Path | None, leave_out: bool, as_json: bool
) -> int:
    """Error by metric against public measurements, with the pool given and from flags alone.

    Exits with 1 when a configuration that failed is predicted to fit.
    """
    cases = read_cases(truth, configs)
    timed = [case for case in cases if case.row.metric in LATENCY]
    scores = latency_scores(timed, calibrate)
    document = _document([case for case in cases if case.row.metric not in LATENCY], timed, scores, calibrate)
    answers: list[Answer] = document.pop("answers") + scores.uncalibrated
    if leave_out:
        document["leave_one_model_out"] = {"kv_cache_gib": _spread(leave_one_model_out(cases))}
    if rows_file is not None:
        write_rows(rows_file, answers)
    if as_json:
        print_json(document)
    else:
        _print(document)
    return 1 if document["false_fits"] else 0


def _document(cases: list[Case], timed: list[Case], scores: LatencyScores, calibrate: int) -> dict[str, Any]:
    """Memory and latency in one document; with calibration, `uncalibrated` holds the curves with too few points."""
    skipped = sum(case.row.excluded for case in timed)
    document = accuracy_document(cases, version=version("tonnage"), others=scores.answers, skipped=skipped)
    rest = scores.uncalibrated
    document["rows"] += len(rest) + scores.used
    document["answered"] += sum(one.predicted is not None for one in rest) + scores.used
    document["calibration"] = {"points": calibrate, "curves": scores.curves, "rows_used": scores.used}
    if calibrate:
        document["uncalibrated"] = summarise(rest)
    return document


def read_cases(truth: Path, configs: Path | None) -> list[Case]:
    """Rows of a truth file with the model and card each names."""
    if configs is not None and not configs.is_dir():
        raise BadInputError(f"no folder {configs}; give a folder of NAME.json files")
    shapes: dict[str, ModelShape | None] = {}
    cases = []
    for row in _rows(truth):
        if row.config not in shapes:
            shapes[row.config] = _shape(row, configs)
        cases.append(Case(row, shapes[row.config], _gpu(row.gpu)))
    if not cases:
        raise BadInputError(f"{truth} has no rows; give a CSV with the columns id, metric and value")
    return cases


def _rows(truth: Path) -> Iterable[TruthRow]:
    try:
        if truth.stat().st_size > LARGEST_TRUTH:
            raise BadInputError(f"{truth} is larger than {LARGEST_TRUTH >> 20} MiB")
        with truth.open(newline="", encoding="utf-8") as file:
            yield from [truth_row(columns) for columns in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInputError(f"cannot read {truth}: {error}") from error


def _shape(row: TruthRow, configs: Path | None) -> ModelShape | None:
    """The config a row names; None when the folder does not hold it."""
    if not row.config:
        return None
    if "/" in row.config or "\\" in row.config or row.config.startswith("."):
        raise TruthError(f"row {row.id}: config {row.config[:60]!r} must be a plain file name")
    if configs is None:
        return load_model(row.config) if row.config in model_names() else None
    file = configs / f"{row.config}.json"
    return load_model(str(file)) if os.path.isfile(file) else None


def _gpu(name: str) -> GpuSpec | None:
    try:
        return find_gpu(name) if name else None
    except UnknownGpuError:
        return None


def write_rows(path: Path, answers: list[Answer]) -> None:
    """One line a scored row; rows without an answer keep empty cells."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ROW_FIELDS)
            writer.writeheader()
            writer.writerows(row_record(one) for one in answers)
    except OSError as error:
        raise BadInputError(f"cannot write {path}: {error.strerror or error}") from error


def _spread(errors: list[tuple[str, float]]) -> dict[str, Any]:
    sizes = sorted(abs(error) for _, error in errors)
    if not sizes:
        return {"n": 0}
    return {
        "n": len(sizes),
        "mae_pct": round(sum(sizes) / len(sizes), 4),
        "median_pct": round(sizes[len(sizes) // 2], 4),
        "max_pct": round(sizes[-1], 4),
        "worst": max(errors, key=lambda one: abs(one[1]))[0],
    }


def _print(document: dict[str, Any]) -> None:
    for key, title in _TITLES.items():
        if key not in document:
            continue
        rows = [(metric, *(_short(found[name]) for name in _COLUMNS)) for metric, found in document[key].items()]
        print_table(title, ("metric", *_COLUMNS.values()), rows)
    if "leave_one_model_out" in document:
        print_table("Leave one model out", ("metric", "value"), document["leave_one_model_out"]["kv_cache_gib"].items())
    print_table("Not answered", ("reason", "rows"), document["not_answered"].items())
    click.echo(
        f"{document['answered']} of {document['rows']} rows answered, {document['excluded']} excluded; "
        f"{document['false_fits']} false fits, {document['false_refusals']} false refusals "
        f"{document['false_refusal_ids'] or ''}"
    )


def _short(value: float | int) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"
