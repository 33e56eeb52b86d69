"""`tonnage up`: the local fleet on 127.0.0.1, a trace through it under two policies, then it stays up."""

import secrets
from pathlib import Path
from typing import Any

import click
import orjson
import uvloop
from rich.console import Console

from tonnage_cli.finite import FiniteRange
from tonnage_cli.fleet.layout import FleetOptions
from tonnage_cli.fleet.outcome import exit_code, html_path, up_document, write_atomically
from tonnage_cli.fleet.presentation import print_comparison, print_scaling, print_urls, progress_bars
from tonnage_cli.fleet.scrape_config import scrape_config
from tonnage_cli.fleet.session import Session, Workload, running
from tonnage_cli.output import check_writable, json_option, print_json
from tonnage_core.slo import Slo
from tonnage_loadgen import html
from tonnage_loadgen.target import parse_target
from tonnage_loadgen.trace_file import read_trace
from tonnage_runtime.catalogue import load_gpu, load_model

START_S, DOWN_S = 60.0, 300.0
START_HELP = f"With --max-engines: engine seconds that a start takes that the planner asks for.  [default: {START_S:g}]"
DOWN_HELP = f"With --max-engines: engine seconds for which the load must have fitted fewer.  [default: {DOWN_S:g}]"
POLICIES = ("prefix", "round_robin", "least_load", "power_of_two", "session", "consistent_hash")


@click.command()
@click.option("--engines", type=click.IntRange(1, 64), default=4, show_default=True, help="Simulated engines to start.")
@click.option("--engine-url", "engine_urls", multiple=True, help="A running engine to put behind the router instead.")
@click.option("--model", default="meta-llama/Llama-3.1-8B", show_default=True, help="Catalogue name or config.json.")
@click.option("--gpu", default="H200-SXM-141GB", show_default=True, help="Catalogue name, alias or GpuProfile path.")
@click.option("--policy", type=click.Choice(POLICIES), default="prefix", show_default=True)
@click.option("--replay", "trace", type=click.Path(path_type=Path), help="Mooncake JSONL or Azure CSV trace to replay.")
@click.option("--limit", type=click.IntRange(1), help="Replay only the first N requests.")
@click.option("--max-input", type=click.IntRange(1), help="Cut prompts to their first N tokens.")
@click.option("--prompt-format", type=click.Choice(("text", "tokens")), default="text", show_default=True)
@click.option(
    "--speed",
    type=FiniteRange(0, 1000, min_open=True),
    default=1.0,
    show_default=True,
    help="Arrivals and the simulators' clock run this much faster than the wall clock.",
)
@click.option("--kv-events", is_flag=True, help="Engines publish KV events: token-id prompts are matched by them.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--slo-ttft-ms", type=FiniteRange(0, min_open=True), default=2000.0, show_default=True)
@click.option("--slo-tpot-ms", type=FiniteRange(0, min_open=True), default=50.0, show_default=True)
@click.option("--port-base", type=click.IntRange(0, 65400), default=8080, show_default=True, help="0: free ports.")
@click.option("--urls-file", type=click.Path(path_type=Path, dir_okay=False), help="Write the URLs here when ready.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".tonnage"),
    show_default=True,
    help="Logs, the weight cache, the HTML report, prometheus.yml.",
)
@click.option(
    "--log-level", type=click.Choice(("DEBUG", "INFO", "WARNING", "ERROR")), default="WARNING", show_default=True
)
@click.option(
    "--max-engines",
    type=click.IntRange(1, 64),
    help="Let the planner scale: from --engines, which stay, to this many. Replays under --policy alone.",
)
@click.option("--start-s", type=FiniteRange(0, 3600, min_open=True), help=START_HELP)
@click.option("--scale-down-after-s", type=FiniteRange(0, 86400), help=DOWN_HELP)
@click.option("--adapter", "adapters", multiple=True, help="A LoRA adapter that every simulated engine is to hold.")
@click.option("--once", is_flag=True, help="Replay, report, end; exit 1 when a request failed or the run is void.")
@json_option
def command(
    trace: Path | None,
    limit: int | None,
    max_input: int | None,
    prompt_format: str,
    slo_ttft_ms: float,
    slo_tpot_ms: float,
    urls_file: Path | None,
    once: bool,
    as_json: bool,
    **fleet: Any,
) -> int:
    """Run the local fleet: engines, router, planner, GPU agent, cold start; replay a trace, report, stay up."""
    if once and trace is None:
        raise click.UsageError("--once replays a trace and ends: name one with --replay")
    _check(urls_file, **fleet)
    fleet |= {"start_s": START_S if fleet["start_s"] is None else fleet["start_s"]}
    fleet |= {"scale_down_after_s": DOWN_S if fleet["scale_down_after_s"] is None else fleet["scale_down_after_s"]}
    fleet |= {"slo_ttft_ms": slo_ttft_ms, "slo_tpot_ms": slo_tpot_ms}
    workload = _workload(trace, limit, max_input, prompt_format, Slo(slo_ttft_ms, slo_tpot_ms)) if trace else None
    options = FleetOptions(**fleet, console_token=secrets.token_urlsafe(18))
    return uvloop.run(_up(options, workload, urls_file=urls_file, once=once, as_json=as_json))


def _check(urls_file: Path | None, **fleet: Any) -> None:
    """Refuse what cannot work before ten processes start."""
    for url in fleet["engine_urls"]:
        parse_target(url)
    if fleet["kv_events"] and fleet["engine_urls"]:
        raise click.UsageError("--kv-events is for simulated engines: real ones' ports go into the router's endpoints")
    for given in ("start_s", "scale_down_after_s"):
        if fleet[given] is not None and fleet["max_engines"] is None:
            option = f"--{given.replace('_', '-')}"
            raise click.UsageError(f"{option} is for a fleet that the planner scales: give --max-engines too")
    if fleet["max_engines"] is not None and fleet["engine_urls"]:
        raise click.UsageError("--max-engines starts and ends simulated engines: leave it out with --engine-url")
    if fleet["max_engines"] is not None and fleet["max_engines"] < fleet["engines"]:
        raise click.UsageError(f"--max-engines {fleet['max_engines']} is less than --engines {fleet['engines']}")
    if fleet["adapters"] and fleet["engine_urls"]:
        raise click.UsageError("--adapter is for simulated engines: load real ones' adapters by their own API")
    if not fleet["engine_urls"]:
        load_model(fleet["model"])
        load_gpu(fleet["gpu"])
    check_writable(fleet["state_dir"] / "logs" / "fleet", "--state-dir")
    if urls_file is not None:
        check_writable(urls_file, "--urls-file")


def _workload(path: Path, limit: int | None, max_input: int | None, prompt_format: str, slo: Slo) -> Workload:
    trace = read_trace(path)
    return Workload(path.name, trace.requests[:limit], trace.bad_lines, max_input, prompt_format, slo)


async def _up(
    options: FleetOptions, workload: Workload | None, *, urls_file: Path | None, once: bool, as_json: bool
) -> int:
    console = Console(stderr=as_json)
    async with running(options) as session:
        scrape = scrape_config(session.urls)
        write_atomically(options.state_dir / "prometheus.yml", orjson.dumps(scrape, option=orjson.OPT_INDENT_2))
        if urls_file is not None:
            write_atomically(urls_file, orjson.dumps(session.urls, option=orjson.OPT_INDENT_2))
        if not as_json:
            print_urls(session.urls, options.console_token)
        code = await _replayed(session, workload, console, as_json=as_json) if workload else 0
        if once or session.stopped:
            return code
        console.print("the fleet stays up; Ctrl-C ends it")
        await session.until_stopped()
        return 0


async def _replayed(session: Session, workload: Workload, console: Console, *, as_json: bool) -> int:
    """Replay under each policy and present the outcome; the exit code, 130 when stopped by a signal."""
    with progress_bars(console, len(workload.requests)) as bars:
        documents = await session.guarded(session.compare(workload, bars.for_policy))
    if documents is None:
        return 130
    if session.scaler is not None and await session.guarded(session.settle()) is None:
        return 130
    scaled = session.scaler.document() if session.scaler is not None else None
    page = html_path(session.options.state_dir)
    html.render(documents, page)
    if as_json:
        print_json(up_document(documents, session.options.policy, session.urls, scaled))
    else:
        print_comparison(documents)
        if scaled is not None:
            print_scaling(scaled)
        console.print(f"latency curves and the timeline: {page}", highlight=False)
    return exit_code(documents, scaled)
