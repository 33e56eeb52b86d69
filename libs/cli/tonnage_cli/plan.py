"""`tonnage plan`: the cheapest way to serve a traffic within an SLO, and why."""

import os
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import click

from tonnage_cli.accuracy import read_cases
from tonnage_cli.output import json_option, print_json, print_table
from tonnage_core.errors import BadInputError
from tonnage_core.planning.calibrated import calibration_lines, offered_rows, with_points
from tonnage_core.planning.page import plan_page
from tonnage_core.planning.plan import make_plan
from tonnage_core.planning.spec import Lookups, PlanSpec, read_spec
from tonnage_core.prediction.truth import points_of
from tonnage_core.traces import TraceRequest
from tonnage_loadgen.trace_file import read_trace
from tonnage_runtime.catalogue import load_gpu, load_model
from tonnage_runtime.yaml_file import read_yaml

_SHOWN = 12


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Also write an HTML report.")
@click.option("--calibrate", "points_file", type=click.Path(path_type=Path), help="CSV of points measured on offers.")
@click.option("--progress", is_flag=True, help="Say on stderr what is being done.")
@json_option
def command(spec: Path, html: Path | None, points_file: Path | None, progress: bool, as_json: bool) -> int:
    """Cost at the SLO for the traffic, SLO and offers of a YAML file: ranked configurations, replicas, flags, advice.

    Paths in the file (a trace, a config.json, a GpuProfile) are relative to it. Exits with 1 when nothing offered meets
    the SLO, and then names what binds and the ways out; with 2 for a malformed file.
    """
    asked = _read(spec) if points_file is None else _calibrated(_read(spec), points_file)
    document = make_plan(asked, version("tonnage"), _say if progress else lambda share, what: None)
    if html is not None:
        _write(html, plan_page(document))
    if as_json:
        print_json(document)
    else:
        _print(document)
    return 0 if document["feasible"] else 1


def _read(path: Path) -> PlanSpec:
    folder = path.parent

    def near(reference: str) -> str:
        """A file beside the specification, else a catalogue name as it stands."""
        beside = folder / reference
        return str(beside) if os.path.exists(beside) else reference

    def trace(reference: str) -> Sequence[TraceRequest]:
        return read_trace(Path(near(reference))).requests

    return read_spec(
        read_yaml(path),
        Lookups(lambda name: load_model(near(name)), lambda name: load_gpu(near(name)), Random, trace),
    )


def _calibrated(spec: PlanSpec, file: Path) -> PlanSpec:
    """The specification with the file's points of its model and engine on offered cards."""
    rows = [case.row for case in read_cases(file, None)]
    found = with_points(spec, points_of(offered_rows(spec, rows)))
    if not any(point.ttft_ms or point.tpot_ms for point in found.points):
        cards = ", ".join(offer.gpu.name for offer in spec.offers)
        what = f"{spec.model} under {spec.engine} on {cards}"
        raise BadInputError(f"{file} has no ttft_ms or tpot_ms row of {what}; measure one such point")
    return found


def _say(share: float, what: str) -> None:
    print(f"{share:4.0%}  {what}", file=sys.stderr)


def _write(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise BadInputError(f"cannot write {path}: {error.strerror or error}") from error


def _print(document: dict[str, Any]) -> None:
    asked = document["spec"]
    title = f"{asked['model']}, {asked['rate_rps']:g} requests/s, " + ", ".join(
        f"{name} {limit:g} ms" for name, limit in asked["slo"].items()
    )
    columns = ("configuration", "replicas", "$/h", "$/M tokens", "TTFT p99", "TPOT p99", "class", "binding")
    usable = [row for row in document["candidates"] if row["replicas"] is not None]
    rows = [_row(row) for row in (usable or document["candidates"])[:_SHOWN]]
    print_table(title, columns, rows)
    if document["best"] is not None:
        _print_best(document)
    for line in calibration_lines(document):
        click.echo(line)
    if document["mix"] is not None:
        mix = document["mix"]
        click.echo(f"mix: {mix['name']} at ${mix['usd_per_hour']:,.2f}/h, ${mix['usd_per_mtok']:.3f} a million tokens")
    if not document["feasible"]:
        click.echo(f"not feasible ({document['binding']}): {document['reason']}")
        for way in document["relaxations"]:
            price = "" if way["usd_per_hour"] is None else f" (${way['usd_per_hour']:,.2f}/h)"
            click.echo(f"way out: {way['change']}: {way['from']} -> {way['to']}{price}: {way['text']}")


def _row(row: dict[str, Any]) -> list[Any]:
    name = row["name"] if row["feasible"] else f"{row['name']} (no)"
    numbers = [row[key] for key in ("replicas", "usd_per_hour", "usd_per_mtok", "ttft_ms", "tpot_ms")]
    return [name, *(round(n, 3) if isinstance(n, float) else n for n in numbers), row["class"], row["binding"]]


def _print_best(document: dict[str, Any]) -> None:
    best, curve = document["best"], document["curve"]
    points = [
        [
            point["rate_rps"],
            f"{point['utilisation']:.0%}",
            point["ttft_ms"]["mean"],
            point["ttft_mean_ms_mm1"],
            point["ttft_mean_ms_mg1"],
            point["ttft_ms"]["p99"],
            point["tpot_ms"]["p99"],
            point["goodput_rps"],
            point["usd_per_mtok"],
            "yes" if point["meets_slo"] else "no",
        ]
        for point in curve["points"]
    ]
    columns = ("rate/s", "load", "TTFT", "M/M/1", "M/G/1", "TTFT p99", "TPOT p99", "goodput", "$/M", "SLO")
    print_table("One replica", columns, points)
    click.echo(
        f"{best['replicas']} x {best['name']}, {best['gpus']} GPUs: ${best['usd_per_mtok']:.3f} a million tokens"
    )
    click.echo(f"why: {best['why']}")
    click.echo(f"curve: {curve['why_not_full']}; knee at {curve['knee_rps']} requests/s")
    for advice in document["advice"]:
        click.echo(f"{advice['topic']}: {advice['text']}")
    click.echo("run: " + shlex.join(best["command"]))
    problems = best["check"]["problems"]
    click.echo("check: passes" if not problems else f"check: {'; '.join(problems)}")
