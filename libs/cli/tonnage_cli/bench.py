"""`tonnage bench`: load in an open or closed loop, sweeps, and the capacity at an SLO, against any OpenAI endpoint."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import uvloop
from rich.console import Console

from tonnage_cli.bench_remote import measured
from tonnage_cli.finite import FiniteRange
from tonnage_cli.output import check_writable, json_option, print_json, print_table
from tonnage_core.benchmarking.arrivals import KINDS
from tonnage_core.benchmarking.capacity import SearchSettings
from tonnage_core.benchmarking.series import run_seed
from tonnage_core.errors import BadInputError
from tonnage_loadgen.accuracy_tasks import compare, read_tasks
from tonnage_loadgen.answers import APIS
from tonnage_loadgen.bench_options import deployment_of, headers_of, numbers, settings_document, spec_of
from tonnage_loadgen.bench_points import point_run, points_csv
from tonnage_loadgen.bench_spec import BenchSpec
from tonnage_loadgen.discover import served_model
from tonnage_loadgen.engine_watch import watched
from tonnage_loadgen.journal import Journal
from tonnage_loadgen.report import write_json
from tonnage_loadgen.surroundings import surroundings
from tonnage_loadgen.sweep import Step, capacity_document, curve, find_capacity, run_one, sweep
from tonnage_loadgen.target import parse_target

PATH = click.Path(path_type=Path, dir_okay=False)
TOLD_S = 3600.0
"""A load that takes longer is told before it begins."""
ABOVE_ZERO = FiniteRange(0, min_open=True)
SHARE = FiniteRange(0, 1)


def _options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return add


LOAD = _options(
    click.option("--rate", type=ABOVE_ZERO, help="Open loop: requests/s."),
    click.option("--duration-s", type=ABOVE_ZERO, default=60.0, show_default=True, help="Open loop: how long."),
    click.option("--arrivals", type=click.Choice(KINDS), default="poisson", show_default=True),
    click.option("--cv", type=ABOVE_ZERO, default=1.0, show_default=True, help="Gamma arrivals: variation of gaps."),
    click.option("--end-rate", type=ABOVE_ZERO, help="Ramp: requests/s at the end."),
    click.option("--trace", type=PATH, help="Open loop: a Mooncake or Azure trace's own arrivals and lengths."),
    click.option("--rate-scale", type=ABOVE_ZERO, default=1.0, show_default=True, help="Trace: times its rate."),
    click.option("--limit", type=click.IntRange(1), help="Trace: only the first N requests."),
    click.option("--users", type=click.IntRange(1), help="Closed loop: so many users."),
    click.option("--requests", type=click.IntRange(1), default=200, show_default=True, help="Closed loop: in all."),
    click.option(
        "--requests-per-user",
        type=click.IntRange(1, 10_000),
        default=1,
        show_default=True,
        help="--sweep-users: at least so many for each user.",
    ),
    click.option(
        "--think-s", type=FiniteRange(0), default=0.0, show_default=True, help="Closed loop: mean think time."
    ),
    click.option("--processes", type=click.IntRange(1, 64), default=1, show_default=True, help="Generator processes."),
    click.option("--seed", type=int, default=0, show_default=True),
)
WORKLOAD = _options(
    click.option("--input-tokens", default="constant:512", show_default=True, help="Fresh prompt tokens."),
    click.option("--output-tokens", default="constant:128", show_default=True),
    click.option("--lengths-from", type=PATH, help="Draw lengths from this trace or log instead."),
    click.option("--class", "classes", multiple=True, help="NAME=SHARE/INPUT/OUTPUT; repeat for a mix of classes."),
    click.option("--prefix-tokens", type=click.IntRange(0), default=0, help="Shared prefix before the fresh tokens."),
    click.option("--prefix-share", type=SHARE, default=1.0, show_default=True, help="Share of requests with it."),
    click.option(
        "--prefix-depth", type=click.IntRange(1, 16), default=1, show_default=True, help="Levels of its tree."
    ),
    click.option("--prefix-branching", type=click.IntRange(1, 10_000), default=1, show_default=True),
    click.option("--turns", type=click.IntRange(1, 1000), default=1, show_default=True, help="Turns of a session."),
    click.option("--turn-think-s", type=FiniteRange(0), help="Between turns, mean: 5, in a closed loop --think-s."),
    click.option("--tenant", "tenants", multiple=True, help="NAME=WEIGHT; repeat."),
    click.option("--tenant-keys", type=PATH, help="YAML of tenant: bearer token; else x-tenant-id names it."),
    click.option("--adapter", "adapters", multiple=True, help="NAME=WEIGHT: a LoRA adapter asked for as model."),
    click.option("--cancel-share", type=SHARE, default=0.0, show_default=True, help="Clients that go away."),
    click.option("--cancel-after-s", type=FiniteRange(0), default=1.0, show_default=True),
)
ENDPOINT = _options(
    click.option("--url", help="Base URL of an OpenAI endpoint, with or without /v1."),
    click.option("--model", help="Model to ask for; by default the first of /v1/models."),
    click.option("--api", type=click.Choice(tuple(APIS)), default="completions", show_default=True),
    click.option("--prompt-format", type=click.Choice(("text", "tokens")), default="text", show_default=True),
    click.option("--timeout-s", type=ABOVE_ZERO, default=600.0, show_default=True, help="Wall seconds a request has."),
    click.option("--no-ignore-eos", is_flag=True, help="Leave ignore_eos out, for servers that do not know it."),
    click.option("--api-key", envvar="TONNAGE_API_KEY", help="Bearer token; TONNAGE_API_KEY is better than a flag."),
    click.option("--watch-url", "watch_urls", multiple=True, help="Engine or agent whose /metrics go into the report."),
)
JUDGING = _options(
    click.option("--slo-ttft-ms", type=ABOVE_ZERO, default=2000.0, show_default=True),
    click.option("--slo-tpot-ms", type=ABOVE_ZERO, default=50.0, show_default=True),
    click.option("--slo-percentile", type=FiniteRange(0, 100, min_open=True, max_open=True), default=99.0),
    click.option("--warmup-s", type=FiniteRange(0), help="Drop the first seconds; by default the warm-up is found."),
    click.option("--time-scale", type=ABOVE_ZERO, default=1.0, show_default=True, help="A simulated engine's own."),
    click.option("--sweep", "sweep_rates", help="Open loop at each of these rates: 1,2,4."),
    click.option("--sweep-users", help="Closed loop at each of these numbers of users: 1,8,32."),
    click.option("--capacity", is_flag=True, help="Find the highest rate that meets the SLO, from --rate on."),
    click.option("--tolerance", type=FiniteRange(0.001, 0.5), default=0.05, show_default=True),
    click.option("--most-runs", type=click.IntRange(1, 100), default=12, show_default=True),
    click.option("--repeats", type=click.IntRange(1, 10), default=1, show_default=True, help="Runs that must agree."),
    click.option("--journal", type=PATH, help="Keep each run of --sweep or --capacity here; killed, it goes on."),
    click.option("--tasks", type=PATH, help="Accuracy gate: JSONL of prompt and answer."),
    click.option("--baseline-url", help="Accuracy gate: the endpoint whose answers are the measure."),
)
DEPLOYMENT = _options(
    click.option("--points", type=PATH, help="Closed loop: write bench points (CSV) here."),
    click.option("--catalogue-model", default="", help="Bench points: the model's catalogue name."),
    click.option("--gpu", default="", help="Bench points: the GPU's catalogue name."),
    click.option("--engine", default="", help="Bench points: engine and version, like vllm:0.32.0."),
    click.option("--precision", default="", help="Bench points: weights' precision."),
    click.option("--tp", type=click.IntRange(1), default=1, show_default=True),
)


SERVICE = _options(
    click.option("--service", help="URL of a bench service: the same as a job of it, followed to its end."),
    click.option("--service-token", envvar="TONNAGE_BENCH_TOKEN", help="Its bearer token; better TONNAGE_BENCH_TOKEN."),
    click.option("--job", help="With --service: follow this job instead of starting one."),
    click.option("--cancel", is_flag=True, help="With --job: stop it; what is measured is reported."),
)


@click.command()
@ENDPOINT
@LOAD
@WORKLOAD
@JUDGING
@DEPLOYMENT
@SERVICE
@click.option("--out", type=PATH, help="Write the JSON report here.")
@json_option
def command(*, out: Path | None, as_json: bool, **given: Any) -> int:
    """Measure an OpenAI endpoint under load.

    Open loop: --rate or --trace; closed loop: --users. Latencies count from the intended instants. Exit 1 when a run
    is void (this generator was the bottleneck), requests failed, no rate meets the SLO or the accuracy gate fails.
    """
    _check(given)
    for file, option in ((out, "--out"), (given["points"], "--points")):
        if file is not None:
            check_writable(file, option)
    document = uvloop.run(_run(given) if given["service"] is None else measured(given))
    if as_json:
        print_json(document)
    else:
        _show(document)
    if out is not None:
        write_json(document, out)
    return _exit_code(document)


def _check(given: dict[str, Any]) -> None:
    if given["job"] is not None and given["service"] is None:
        raise BadInputError("--job needs --service: the service that has the job")
    if given["cancel"] and given["job"] is None:
        raise BadInputError("--cancel needs --job: the job to stop")
    if given["job"] is not None:
        return
    if given["url"] is None:
        raise BadInputError("--url is missing: the endpoint to measure")
    if (given["tasks"] is None) != (given["baseline_url"] is None):
        raise BadInputError("the accuracy gate needs both --tasks and --baseline-url")
    if given["journal"] is not None and not (given["capacity"] or given["sweep_rates"]):
        raise BadInputError("--journal needs a series of runs: --sweep or --capacity")
    if given["capacity"] and given["rate"] is None:
        raise BadInputError("--capacity needs --rate: the first rate to try")
    if given["sweep_rates"] and given["rate"] is None:
        given["rate"] = numbers(given["sweep_rates"], "--sweep")[0]
    if given["sweep_users"] and given["users"] is None and given["rate"] is None:
        given["users"] = _user_counts(given["sweep_users"])[0]
    if given["points"] is not None and given["users"] is None and not given["sweep_users"]:
        raise BadInputError(
            "--points needs a closed loop (--users or --sweep-users): bench points are of fixed clients"
        )
    waits = given["think_s"] > 0 or (given["turns"] > 1 and given["turn_think_s"])
    if given["points"] is not None and waits:
        raise BadInputError("--points needs users who do not wait: leave --think-s and --turn-think-s out")


def _user_counts(text: str) -> list[int]:
    found = numbers(text, "--sweep-users")
    if any(number != int(number) for number in found):
        raise BadInputError(f"--sweep-users {text!r}: whole numbers of users are expected")
    return [int(number) for number in found]


async def _run(given: dict[str, Any]) -> dict[str, Any]:
    headers = headers_of(given)
    tasks = None if given["tasks"] is None else read_tasks(given["tasks"])
    model = (await served_model(parse_target(given["url"]), given["model"], headers)).model
    spec = spec_of(given, model)
    spec.check()
    if spec.least_s > TOLD_S:
        click.echo(f"this load takes {spec.least_s / 3600:.3g} hours at least", err=True)
    around = await surroundings(given["url"], headers)
    async with watched(given["watch_urls"], headers) as log:
        document = await _measure(given, spec)
    document |= {"model": model, "settings": settings_document(spec), "surroundings": around, "engines": log.document()}
    if tasks is not None:
        gate = await compare(tasks, given["url"], given["baseline_url"], model, headers)
        document["accuracy_gate"] = asdict(gate)
    return document


async def _measure(given: dict[str, Any], spec: BenchSpec) -> dict[str, Any]:
    journal = None if given["journal"] is None else Journal(given["journal"], _series(given, spec))
    keep, done = (None, ()) if journal is None else (journal.add, tuple(journal.steps))
    if given["capacity"]:
        search = SearchSettings(given["rate"], given["tolerance"], given["most_runs"], given["repeats"])
        found, steps = await find_capacity(spec, search, on_step=keep, done=done)
        best = max((s for s in steps if s.rate == found.capacity), key=lambda s: bool(s.met), default=steps[-1])
        document = best.document | {"capacity": capacity_document(found, steps), "curve": curve(steps)}
    elif given["sweep_rates"]:
        steps = await sweep(spec, numbers(given["sweep_rates"], "--sweep"), on_step=keep, done=done)
        document = _last_met(steps).document | {"curve": curve(steps)}
    elif not given["sweep_users"]:
        document = await run_one(spec)
        if given["points"] is not None:
            _write_points(given, [(spec.users, spec, document)])
        return document
    else:
        document = {}
    return document | await _by_users(given, spec) if given["sweep_users"] else document


async def _by_users(given: dict[str, Any], spec: BenchSpec) -> dict[str, Any]:
    """Closed loops at each number of users, each with prompts of its own; the last one's figures where alone."""
    documents = []
    for number, count in enumerate(_user_counts(given["sweep_users"])):
        asked = max(spec.requests, count * given["requests_per_user"])
        more = replace(spec, arrivals=None, users=count, requests=asked, seed=run_seed(spec.seed, number))
        documents.append((count, more, await run_one(more)))
    if given["points"] is not None:
        _write_points(given, documents)
    runs = {"runs": [{"users": count} | found for count, _, found in documents]}
    alone = not (given["capacity"] or given["sweep_rates"])
    return documents[-1][2] | runs if alone else runs


def _last_met(steps: Sequence[Step]) -> Step:
    return max((s for s in steps if s.met), key=lambda s: s.rate, default=steps[-1])


def _write_points(given: dict[str, Any], documents: Sequence[tuple[int | None, BenchSpec, dict[str, Any]]]) -> None:
    deployment = deployment_of(given)
    runs = [
        point_run(f"{deployment.engine or 'bench'}.c{users}", spec, document, users or 1)
        for users, spec, document in documents
    ]
    given["points"].write_text(points_csv(runs, deployment), "utf-8")


def _series(given: dict[str, Any], spec: BenchSpec) -> dict[str, Any]:
    """What makes two series the same: every option that shapes a run or the choice of the next."""
    names = ("capacity", "sweep_rates", "tolerance", "repeats")
    return settings_document(spec) | {name: given[name] for name in names} | {"trace": str(given["trace"])}


def _exit_code(document: dict[str, Any]) -> int:
    capacity, gate = document.get("capacity"), document.get("accuracy_gate")
    requests = document["requests"]
    errors = requests["errors"] + document["warmup"].get("errors", 0) > 0 or requests["ok"] == 0
    failed = document["client"]["bound"] or (capacity is None and errors)
    no_rate = capacity is not None and capacity["capacity"] is None
    return 1 if failed or no_rate or (gate is not None and not gate["passed"]) else 0


def _show(document: dict[str, Any]) -> None:
    columns = ("ms", "p50", "p90", "p99", "mean")
    rows = [
        (name, *(_number(document[key][column]) for column in columns[1:]))
        for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("ITL", "itl_ms"), ("E2E", "e2e_ms"))
    ]
    print_table("Latency (engine time, from the intended instant)", columns, rows)
    print_table("Run", ("figure", "value"), _figures(document))
    if "curve" in document:
        print_table("Curve", ("rate, 1/s", "meets the SLO", "goodput, 1/s", "in flight"), _curve_rows(document))
    console = Console()
    for line in [*_verdicts(document), *document["notes"], *document["error_samples"]]:
        style = "bold red" if line.startswith("VOID") else "yellow"
        console.print(line, style=style, markup=False, highlight=False)


def _figures(document: dict[str, Any]) -> list[tuple[str, str | None]]:
    requests, client, percent = document["requests"], document["client"], document["slo"]["percentile"]
    rows: list[tuple[str, str | None]] = [
        ("requests ok of sent, warm-up left out", f"{requests['ok']} of {requests['sent']}"),
        ("cancelled / warm-up", f"{requests['cancelled']} / {requests['warmup']}"),
        ("goodput, requests/s", _number(document["goodput_rps"])),
        ("in flight, mean", _number(document["concurrency"]["mean"])),
        ("client lateness p99, ms of wall time", _number(client["lateness_ms_p99"])),
        ("client CPU, s", _number(client["cpu_s"])),
    ]
    for name, found in document["percentiles"].items():
        if found is not None:
            high = _number(found["high_ms"]) or "unbounded"
            value = f"{_number(found['value_ms'])} ({_number(found['low_ms'])} to {high})"
            rows.append((f"{name.upper()} p{percent:g}, ms (95 % interval)", value))
    return rows


def _curve_rows(document: dict[str, Any]) -> list[tuple[str | None, ...]]:
    words = {True: "yes", False: "no", None: "void"}
    return [
        (_number(s["rate_rps"]), words[s["met"]], _number(s["goodput_rps"]), _number(s["concurrency"]))
        for s in document["curve"]
    ]


def _verdicts(document: dict[str, Any]) -> list[str]:
    lines = []
    if (capacity := document.get("capacity")) is not None:
        best = "none" if capacity["capacity"] is None else f"{capacity['capacity']:.3g} requests/s"
        lines.append(f"capacity: {best} in {capacity['runs']} runs ({capacity['reason']})")
    if (gate := document.get("accuracy_gate")) is not None:
        lines.append(f"accuracy gate {'passed' if gate['passed'] else 'FAILED'}: {gate['reason']}")
    return lines


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.2f}"
