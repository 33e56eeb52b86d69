"""`tonnage bench --service URL`: the same options as a job of the bench service, followed to its report."""

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import quote

import click

from tonnage_core.errors import BadInputError, TonnageError
from tonnage_loadgen.bench_options import numbers
from tonnage_loadgen.plain_http import Answer, ask
from tonnage_loadgen.target import Target, parse_target

POLL_S = 0.5
PATIENCE_S = 120.0
"""How long a service that does not answer is asked again; the job goes on without us."""
LOCAL = {
    "tenant_keys": "--tenant-keys: keys of tenants are not sent to a service",
    "api_key": "--api-key and TONNAGE_API_KEY: the service has its own keys (TONNAGE_BENCH_TARGET_KEYS)",
    "journal": "--journal: the service keeps each run anyway",
}
TEXTS = {"trace": "trace_text", "lengths_from": "lengths_text", "tasks": "tasks_text"}
ENDED = ("done", "failed", "cancelled")


class JobFailedError(TonnageError):
    """The job ended without a whole report."""


def request_of(given: dict[str, Any]) -> dict[str, Any]:
    """The options as the service takes them. Raises `BadInputError` for what only works here."""
    for name, why in LOCAL.items():
        if given[name] is not None:
            raise BadInputError(f"with --service there is no {why}")
    left_out = {*LOCAL, *TEXTS, "points", "sweep_rates", "sweep_users", "service", "service_token", "job", "cancel"}
    body = {name: value for name, value in given.items() if name not in left_out}
    body |= {TEXTS[name]: None if given[name] is None else _text(given[name]) for name in TEXTS}
    body["sweep"] = numbers(given["sweep_rates"], "--sweep")
    body["sweep_users"] = [int(count) for count in numbers(given["sweep_users"], "--sweep-users")]
    if body["sweep"] and not given["capacity"]:
        body["rate"] = None
    if body["sweep_users"]:
        body["users"] = None
    return {name: list(value) if isinstance(value, tuple) else value for name, value in body.items()}


async def measured(given: dict[str, Any]) -> dict[str, Any]:
    """Start the job, or join `--job`, follow it on stderr, return its report. Raises `TonnageError`."""
    bench = _Service(given["service"], given["service_token"])
    if given["job"] is None:
        job = (await bench.call("/v1/bench", request_of(given)))["id"]
        click.echo(f"job {job}: follow it again with --service {given['service']} --job {job}", err=True)
    else:
        job = quote(given["job"], safe="")
        await bench.call(f"/v1/bench/{job}")
    if given["cancel"]:
        await bench.call(f"/v1/bench/{job}", method="DELETE")
    found = await _followed(bench, job)
    if found["state"] == "failed" or (found["state"] == "cancelled" and not found["runs_done"]):
        raise JobFailedError(f"job {job} {found['state']}{': ' + found['error'] if found['error'] else ''}")
    report = await bench.call(f"/v1/bench/{job}/report")
    if given["points"] is not None:
        given["points"].write_bytes((await bench.answer(f"/v1/bench/{job}/points")).body)
    return report


async def _followed(bench: "_Service", job: str) -> dict[str, Any]:
    told = ""
    while True:
        found = await bench.call(f"/v1/bench/{job}", patient=True)
        if (line := _standing(found)) != told:
            click.echo(line, err=True)
            told = line
        if found["state"] in ENDED:
            return found
        await asyncio.sleep(POLL_S)


def _standing(job: dict[str, Any]) -> str:
    line = f"{job['state']}: {job['runs_done']} of at most {job['runs_most']} runs done"
    if job["runs"] and job["state"] == "running":
        run = job["runs"][-1]
        at = f"{run['rate_rps']:g} requests/s" if run["rate_rps"] else f"{run['users']} users" if run["users"] else ""
        line += f"; {at} ({run['reason']})" if at else f"; {run['reason']}"
        line += f", attempt {run['attempt']}" if run["attempt"] > 1 else ""
    return line + (f"; {job['error']}" if job["error"] else "")


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot be read as text: {error}") from error


class _Service:
    """The bench service's API."""

    def __init__(self, url: str, token: str | None) -> None:
        self._target: Target = parse_target(url)
        self._headers = (("authorization", f"Bearer {token}"),) if token else ()

    async def call(
        self, path: str, body: Any = None, *, method: str | None = None, patient: bool = False
    ) -> dict[str, Any]:
        """The document at `path`. `patient`: a service that is down or busy is asked again for a while."""
        until = monotonic() + (PATIENCE_S if patient else 0.0)
        while True:
            try:
                answer = await self.answer(path, body, method=method)
                if answer.status < 500 or monotonic() >= until:
                    break
            except TonnageError:
                if monotonic() >= until:
                    raise
            await asyncio.sleep(POLL_S)
        document = answer.document()
        if answer.status >= 400 or not isinstance(document, dict):
            message = document.get("error", {}).get("message") if isinstance(document, dict) else None
            raise BadInputError(f"the bench service answers {answer.status}: {message or 'no JSON object'}")
        return document

    async def answer(self, path: str, body: Any = None, *, method: str | None = None) -> Answer:
        """The answer as it is. Raises `TargetError` when there is none."""
        return await ask(self._target, path, body, headers=self._headers, timeout_s=30.0, method=method)
