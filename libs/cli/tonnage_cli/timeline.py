"""`tonnage timeline`: where the time of one cold start went, from the pod, the staging and the engine's log."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import orjson

from tonnage_cli.finite import FiniteRange
from tonnage_cli.output import check_writable, json_option, print_json, print_table
from tonnage_cli.waterfall import bar, label_of, ordered, origin_of, svg
from tonnage_core.coldstart.anatomy import document, read_document, start_spans
from tonnage_core.coldstart.engine_log import EngineLog, read_engine_log
from tonnage_core.coldstart.phases import COLD_START_PHASES, Span, Timeline
from tonnage_core.coldstart.pod_spans import PodStart, pod_start
from tonnage_core.errors import BadInputError, TonnageError
from tonnage_loadgen.plain_http import ask
from tonnage_loadgen.target import parse_target

MAX_BYTES = 64 << 20
READABLE = click.Path(path_type=Path, exists=True, dir_okay=False, readable=True)


class NotTakenError(TonnageError):
    """The service did not take the start."""


@click.command()
@click.option("--pod", type=READABLE, help="The pod, as `kubectl get pod NAME -o json` says.")
@click.option(
    "--events", type=READABLE, help="Its events, as `kubectl get events -o json` says; they go after an hour."
)
@click.option("--log", type=READABLE, help="The engine's log, as `kubectl logs NAME` says.")
@click.option(
    "--log-offset", type=FiniteRange(-86400, 86400), default=0.0, help="Seconds that the log's clock is ahead of UTC."
)
@click.option("--container", default="", help="The engine's container; by default the pod's first.")
@click.option("--stage", type=READABLE, help="The staging, as `tonnage stage --json` says.")
@click.option("--pool", default="", help="The pool that the start was for; by default the pod's label says.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw the waterfall into this SVG file.")
@click.option(
    "--report", metavar="URL", help="Tell this cold-start service: its histograms, and the planner's lead time."
)
@click.option("--token", envvar="TONNAGE_COLDSTART_TOKEN", help="Bearer token of that service, where it asks for one.")
@json_option
def command(*, plot: Path | None, report: str | None, token: str | None, as_json: bool, **given: Any) -> int:
    """Say where the time of one cold start went: provision, pull, fetch, load, init.

    What no source tells is unknown, not zero. At least one of --pod, --log and --stage is needed.
    """
    pod = _pod(given)
    log = _log(given, pod)
    fetched = _fetched(given["stage"])
    if pod is None and log is None and not fetched:
        raise BadInputError("nothing to read: give --pod, --log or --stage")
    name = pod.name if pod else str((given["log"] or given["stage"]).stem)
    found = document(name, given["pool"] or (pod.pool if pod else ""), start_spans(pod, log, fetched))
    if found["total_s"] is None:
        raise BadInputError("no source tells both ends of any phase: has the pod been scheduled, the engine started?")
    timeline = read_document(found)
    if plot is not None:
        check_writable(plot, "--plot")
        plot.write_text(svg(timeline, f"{name}: {timeline.total_s:.1f} s"))
    if as_json:
        print_json(found)
    else:
        _show(found, timeline)
    if report is not None:
        asyncio.run(_told(report, token, found))
    return 0


def _pod(given: dict[str, Any]) -> PodStart | None:
    if given["pod"] is None:
        if given["events"] is not None or given["container"]:
            raise BadInputError("--events and --container say more of a pod: give --pod too")
        return None
    events = _json(given["events"]) if given["events"] is not None else {}
    listed = events.get("items", []) if events.get("kind") in (None, "List", "EventList") else [events]
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise BadInputError(f"--events {given['events']}: a list of events is expected")
    return pod_start(_json(given["pod"]), listed, container=given["container"])


def _log(given: dict[str, Any], pod: PodStart | None) -> EngineLog | None:
    path: Path | None = given["log"]
    if path is None:
        return None
    near = pod.started_s if pod is not None and pod.started_s is not None else path.stat().st_mtime
    with path.open(encoding="utf-8", errors="replace") as lines:
        found = read_engine_log(lines, near, offset_s=given["log_offset"])
    if found.first_s is None:
        raise BadInputError(f"--log {path}: no line of a vLLM log in it (as INFO 11-30 01:15:10 ...)")
    return found


def _fetched(path: Path | None) -> list[Span]:
    if path is None:
        return []
    found = _json(path)
    seconds, ended = found.get("seconds"), found.get("ended_at")
    if found.get("schema") != "tonnage.stage/1" or not isinstance(seconds, int | float):
        raise BadInputError(f"--stage {path}: not a report of `tonnage stage --json`")
    if not isinstance(ended, int | float):
        raise BadInputError(f"--stage {path}: it does not say when it ended: staged by an older version")
    return [Span("fetch", ended - seconds, ended)]


def _json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_BYTES:
        raise BadInputError(f"{path}: over {MAX_BYTES >> 20} MiB")
    try:
        found = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise BadInputError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadInputError(f"{path}: a JSON object is expected")
    return found


async def _told(url: str, token: str | None, found: dict[str, Any]) -> None:
    if token is not None and not (token.isascii() and token.isprintable()):
        raise BadInputError("--token: only printable ASCII can stand in a header")
    headers = (("authorization", f"Bearer {token}"),) if token else ()
    answer = await ask(parse_target(url), "/v1/starts", found, headers=headers)
    if answer.status != 201:
        said = bytes(answer.body[:200]).decode(errors="replace")
        raise NotTakenError(f"{url}: the start was not taken: {answer.status} {said}")


def _show(found: dict[str, Any], timeline: Timeline) -> None:
    spans = ordered(timeline)
    origin, total = origin_of(spans) or 0.0, timeline.total_s or 0.0
    rows: list[tuple[object, ...]] = [
        (label_of(one), f"{(one.start_s or 0.0) - origin:.1f}", f"{one.seconds:.1f}", bar(one, origin, total))
        for one in spans
    ]
    rows += [(phase, None, None, "unknown") for phase in COLD_START_PHASES if phase in found["unknown"]]
    started = datetime.fromtimestamp(origin, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    print_table(f"{found['name']}: {total:.1f} s from {started}", ("phase", "from, s", "seconds", "when"), rows)
    if found["unexplained_s"]:
        click.echo(f"{found['unexplained_s']:.1f} s are in no phase that is known")
