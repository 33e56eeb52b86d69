"""`tonnage replay`: a trace against any OpenAI endpoint, in an open loop."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tonnage_cli.finite import FiniteRange
from tonnage_cli.output import check_writable, json_option, print_json, print_table
from tonnage_core.errors import BadInputError
from tonnage_core.slo import Slo
from tonnage_core.traces import Trace
from tonnage_loadgen import html, report
from tonnage_loadgen.replay import PROMPT_FORMATS, OnProgress, ReplayOptions, replay
from tonnage_loadgen.replay import Progress as Standing
from tonnage_loadgen.trace_file import read_trace
from tonnage_runtime.open_files import raise_open_file_limit


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--url", required=True, help="Base URL of an OpenAI endpoint, with or without /v1.")
@click.option("--model", help="Model to ask for; by default the first of /v1/models.")
@click.option(
    "--speed",
    type=FiniteRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Arrivals come this much faster than in the trace.",
)
@click.option(
    "--time-scale",
    type=FiniteRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Wall time is multiplied by this in the report; give a simulated engine's own --time-scale.",
)
@click.option("--limit", type=click.IntRange(1), help="Replay only the first N requests.")
@click.option(
    "--max-input",
    type=click.IntRange(1),
    help="Cut longer prompts to their first N tokens; shared prefixes stay shared.",
)
@click.option(
    "--prompt-format",
    type=click.Choice(PROMPT_FORMATS),
    default="text",
    show_default=True,
    help="tokens: prompts as token ids, exactly as long as the trace says on any tokenizer.",
)
@click.option("--slo-ttft-ms", type=FiniteRange(0, min_open=True), default=2000.0, show_default=True)
@click.option("--slo-tpot-ms", type=FiniteRange(0, min_open=True), default=50.0, show_default=True)
@click.option(
    "--slo-percentile",
    type=FiniteRange(0, 100),
    default=99.0,
    show_default=True,
    help="Share of requests, in %, that should meet the SLO.",
)
@click.option(
    "--engine-url",
    "engine_urls",
    multiple=True,
    help="An engine behind --url, for its cache size (bounds the ceiling hit rate); repeat for each. "
    "By default --url itself is asked.",
)
@click.option(
    "--timeout-s",
    type=FiniteRange(0, min_open=True),
    default=600.0,
    show_default=True,
    help="Wall seconds a request may take.",
)
@click.option("--no-ignore-eos", is_flag=True, help="Leave ignore_eos out, for servers that do not know it.")
@click.option("--api-key", envvar="TONNAGE_API_KEY", help="Bearer token; TONNAGE_API_KEY is better than a flag.")
@click.option("--seed", type=int, default=0, show_default=True, help="Goes into request ids and the report.")
@click.option("--strict", is_flag=True, help="Stop at the first bad line of the trace.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report here: a page with charts for .html, else JSON.",
)
@json_option
def command(trace: Path, *, strict: bool, out: Path | None, as_json: bool, **given: Any) -> int:
    """Replay a Mooncake JSONL or Azure CSV trace against an OpenAI endpoint in an open loop.

    Latencies count from each request's intended instant. Exit 1 when a request failed or the run is void, that is,
    when this generator and not the server was the bottleneck.
    """
    read = read_trace(trace, strict=strict)
    if out is not None:
        check_writable(out, "--out")
    document = uvloop.run(_run(trace, read, given, quiet=as_json))
    if as_json:
        print_json(document)
    else:
        _show(document)
    if out is not None:  # last: the run is not lost when the file is
        _write(document, out)
    return _exit_code(document)


async def _run(path: Path, trace: Trace, given: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    slo = Slo(given["slo_ttft_ms"], given["slo_tpot_ms"], given["slo_percentile"])
    options = _options(given)
    raise_open_file_limit()
    cache = await report.fleet_cache(given["engine_urls"] or (options.url,), options.headers)
    with _progress_bar(len(trace.requests[: options.limit]), shown=not quiet) as on_progress:
        result = await replay(options, trace.requests, on_progress)
    return report.build(result, slo, cache=cache, bad_lines=trace.bad_lines, trace=path.name)


def _options(given: dict[str, Any]) -> ReplayOptions:
    key = given["api_key"]
    if key is not None and not (key.isascii() and key.isprintable()):
        raise BadInputError("--api-key: only printable ASCII can stand in a header")
    return ReplayOptions(
        url=given["url"],
        model=given["model"],
        speed=given["speed"],
        time_scale=given["time_scale"],
        limit=given["limit"],
        max_input=given["max_input"],
        prompt_format=given["prompt_format"],
        ignore_eos=not given["no_ignore_eos"],
        timeout_s=given["timeout_s"],
        headers=() if key is None else (("authorization", f"Bearer {key}"),),
        seed=given["seed"],
    )


@contextlib.contextmanager
def _progress_bar(total: int, *, shown: bool) -> Iterator[OnProgress | None]:
    if not (shown and sys.stderr.isatty()):
        yield None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task("starting", total=total)
        bar.refresh()

        def on_progress(at: Standing) -> None:
            bar.update(task, completed=at.done, description=f"{at.in_flight} in flight, {at.errors} errors")
            bar.refresh()

        yield on_progress


def _write(document: dict[str, Any], out: Path) -> None:
    if out.suffix.lower() in (".html", ".htm"):
        html.render({"replay": document}, out)
    else:
        report.write_json(document, out)


def _exit_code(document: dict[str, Any]) -> int:
    return 1 if document["client"]["bound"] or document["requests"]["errors"] else 0


def _show(document: dict[str, Any]) -> None:
    columns = ("ms", "p50", "p90", "p99", "mean")
    latencies = (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("ITL", "itl_ms"), ("E2E", "e2e_ms"))
    rows = [(name, *(_number(document[key][column]) for column in columns[1:])) for name, key in latencies]
    print_table("Latency (engine time, from the intended instant)", columns, rows)
    print_table("Run", ("figure", "value"), _figures(document))
    console = Console()
    for note in document["notes"]:
        console.print(note, style="bold red" if note.startswith("VOID") else "yellow", markup=False, highlight=False)
    for sample in document["error_samples"]:
        console.print(sample, style="red", markup=False, highlight=False)


def _figures(document: dict[str, Any]) -> list[tuple[str, str | None]]:
    requests, prefix, client, slo = (document[key] for key in ("requests", "prefix", "client", "slo"))
    errors = ", ".join(f"{kind} {count}" for kind, count in document["errors_by_kind"].items())
    return [
        ("requests ok of sent", f"{requests['ok']} of {requests['sent']}"),
        ("errors", f"{requests['errors']}" + (f" ({errors})" if errors else "")),
        (f"met TTFT {slo['ttft_ms']:g} ms and TPOT {slo['tpot_ms']:g} ms", _share(document["slo_attainment"])),
        ("goodput, requests/s", _number(document["goodput_rps"])),
        ("prefix hit rate (one shared cache)", _hits(prefix)),
        ("output tokens", None if document["output_tokens"] is None else f"{document['output_tokens']}"),
        ("duration, s", _number(document["duration_s"])),
        ("client lateness p99, ms of wall time", _number(client["lateness_ms_p99"])),
        ("client CPU, s", _number(client["cpu_s"])),
    ]


def _hits(prefix: dict[str, Any]) -> str:
    return f"{_share(prefix['hit_rate']) or 'unknown'} ({_share(prefix['ceiling_hit_rate']) or 'unknown'})"


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.2f}"


def _share(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.1f} %"
