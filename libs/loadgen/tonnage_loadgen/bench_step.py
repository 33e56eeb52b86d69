"""`python -m tonnage_loadgen.bench_step`: one run of a series in a process of its own, for the bench's workers.

The load gets an event loop and a CPU account that nothing else shares, and stopping it is ending the process. The first
line of standard input is `{"request": options, "ask": the run, "headers": [[name, value]], "baseline_headers"}`, each
host's headers for itself alone; one line of standard output is the result, `{"met", "document", "points"}` or
`{"error": {"kind", "message"}}`. With `asks` (several runs) and `longest_s` in place of `ask` nothing is sent: the
result is `{}`, or why one of the runs cannot be. When standard input ends, the worker is gone and the run ends at once:
nobody would take its result, and another worker may begin it anew.
"""

import os
import shutil
import sys
import tempfile
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import uvloop

from tonnage_core.errors import BadInputError, TonnageError
from tonnage_loadgen.accuracy_tasks import compare, read_tasks
from tonnage_loadgen.bench_options import deployment_of, settings_document, spec_of
from tonnage_loadgen.bench_points import point_run, points_csv
from tonnage_loadgen.bench_run import meets_slo
from tonnage_loadgen.bench_spec import BenchSpec
from tonnage_loadgen.discover import Headers, served_model
from tonnage_loadgen.engine_watch import watched
from tonnage_loadgen.surroundings import surroundings
from tonnage_loadgen.sweep import run_one
from tonnage_loadgen.target import parse_target

ABANDONED = 3
"""Exit code when the worker is gone."""
FILES = {"trace": "trace_text", "lengths_from": "lengths_text", "tasks": "tasks_text"}
"""Options that name a file on the command line, and the request's field that holds its text."""


def spec_for(given: dict[str, Any], ask: dict[str, Any], model: str, headers: Headers) -> BenchSpec:
    """The load of one run: the request's, at the run's rate or users, drawn from the run's seed."""
    if ask["kind"] == "users":
        requests = max(given["requests"], ask["users"] * given["requests_per_user"])
        given = given | {"rate": None, "users": ask["users"], "requests": requests}
    elif ask["kind"] in ("search", "rate"):
        given = given | {"users": None, "rate": ask["rate"]}
    spec = replace(spec_of(given, model), seed=ask["seed"])
    return replace(spec, endpoint=replace(spec.endpoint, headers=headers))


async def run_step(
    given: dict[str, Any], ask: dict[str, Any], headers: Headers, baseline_headers: Headers = ()
) -> dict[str, Any]:
    """Make the run; raises `TonnageError`. `points` is CSV when a closed loop ran on a named model and GPU."""
    model = (await served_model(parse_target(given["url"]), given["model"], headers)).model
    if ask["kind"] == "gate":
        urls = (given["url"], given["baseline_url"])
        found = await compare(read_tasks(given["tasks"]), *urls, model, headers, baseline_headers)
        return {"met": found.passed, "document": asdict(found), "points": None}
    spec = spec_for(given, ask, model, headers)
    around = await surroundings(given["url"], headers)
    async with watched(given["watch_urls"]) as log:
        document = await run_one(spec)
    document |= {
        "model": model,
        "settings": settings_document(spec),
        "surroundings": around,
        "engines": log.document(),
    }
    points = None
    if ask["users"] and given["gpu"] and given["catalogue_model"]:
        name = f"{given['job']}.{ask['number']}.c{ask['users']}"
        points = points_csv([point_run(name, spec, document, ask["users"])], deployment_of(given))
    return {"met": meets_slo(document), "document": document, "points": points}


def check_steps(given: dict[str, Any], asks: list[dict[str, Any]], longest_s: float) -> None:
    """Raises `BadInputError` for a request with a run whose load cannot be, or with a file that cannot be read."""
    for ask in asks:
        if ask["kind"] == "gate":
            read_tasks(given["tasks"])
        else:
            spec_for(given, ask, given["model"] or "", ()).check(longest_s)


def with_files(given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Options that name files, with the texts of the request put into files of `folder`."""
    named: dict[str, Any] = {"tenant_keys": None, "api_key": None}
    for option, field in FILES.items():
        text = given.get(field)
        named[option] = None
        if text is not None:
            suffix = ".csv" if option != "tasks" and not text.lstrip().startswith("{") else ".jsonl"
            named[option] = folder / (option + suffix)
            named[option].write_text(text, "utf-8")
    return given | named


def _end_with_the_worker(folder: str) -> None:
    # The bare descriptor: a thread inside the buffered reader would hold its lock when the interpreter ends.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(ABANDONED)


def main() -> int:
    """Always 0 with one line of result, or `ABANDONED`."""
    asked = orjson.loads(sys.stdin.buffer.readline())
    headers = [tuple((str(a), str(b)) for a, b in asked.get(name, ())) for name in ("headers", "baseline_headers")]
    try:
        with tempfile.TemporaryDirectory(prefix="tonnage-bench-") as folder:
            threading.Thread(target=_end_with_the_worker, args=(folder,), daemon=True).start()
            given = with_files(asked["request"], Path(folder))
            if "asks" in asked:
                check_steps(given, asked["asks"], asked["longest_s"])
                found: dict[str, Any] = {}
            else:
                found = uvloop.run(run_step(given, asked["ask"], *headers))
    except TonnageError as error:
        kind = "input" if isinstance(error, BadInputError) else "failed"
        found = {"error": {"kind": kind, "message": str(error)}}
    sys.stdout.buffer.write(orjson.dumps(found) + b"\n")
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
