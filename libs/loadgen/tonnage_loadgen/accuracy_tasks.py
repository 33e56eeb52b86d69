"""The accuracy gate's tasks: a JSONL file of prompts and answers, asked of two endpoints at temperature 0.

A line is `{"prompt": "…", "answer": "…"}`; an answer is right when it stands in the completion as words of its own
(`"regex": true` makes it a regular expression). `max_tokens` is 64 unless the line says.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tonnage_core.benchmarking.accuracy_gate import GateResult, gate
from tonnage_core.errors import BadInputError
from tonnage_loadgen.discover import Headers, served_model
from tonnage_loadgen.errors import TargetError
from tonnage_loadgen.plain_http import ask
from tonnage_loadgen.target import Target, parse_target

AT_ONCE = 16
"""Tasks in flight."""


@dataclass(frozen=True, slots=True)
class Task:
    """One question and the pattern of a right answer."""

    prompt: str
    pattern: re.Pattern[str]
    max_tokens: int = 64


def read_tasks(path: Path) -> list[Task]:
    """The tasks of a file; raises `BadInputError` with the line's number."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read: {error.strerror}") from error
    tasks = [_task(line, f"{path.name}: line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not tasks:
        raise BadInputError(f'{path.name}: no task; a line is {{"prompt": …, "answer": …}}')
    return tasks


async def compare(
    tasks: Sequence[Task],
    candidate_url: str,
    baseline_url: str,
    model: str | None,
    headers: Headers = (),
    baseline_headers: Headers | None = None,
) -> GateResult:
    """Both endpoints' answers, and the gate's word. Raises `TargetError` when one does not answer a task.

    `baseline_headers` None: both are asked with `headers`.
    """
    baseline = await answers(tasks, baseline_url, None, headers if baseline_headers is None else baseline_headers)
    return gate(baseline, await answers(tasks, candidate_url, model, headers))


async def answers(tasks: Sequence[Task], url: str, model: str | None, headers: Headers = ()) -> list[bool]:
    """Was each task answered rightly."""
    target = parse_target(url)
    name = (await served_model(target, model, headers)).model
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(task: Task) -> bool:
        async with turn:
            return await _right(task, target, name, headers)

    return list(await asyncio.gather(*map(one, tasks)))


async def _right(task: Task, target: Target, model: str, headers: Headers) -> bool:
    body = {"model": model, "prompt": task.prompt, "max_tokens": task.max_tokens, "temperature": 0}
    answer = await ask(target, "/v1/completions", body, headers=headers, timeout_s=300.0)
    document: Any = answer.document()
    try:
        text = document["choices"][0]["text"]
    except (KeyError, IndexError, TypeError) as error:
        raise TargetError(f"{target.url}: an accuracy task got status {answer.status} and no completion") from error
    return task.pattern.search(str(text)) is not None


def _task(line: bytes, where: str) -> Task:
    try:
        given = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadInputError(f"{where}: not JSON: {error}") from error
    prompt, answer = (given.get("prompt"), given.get("answer")) if isinstance(given, dict) else (None, None)
    if not isinstance(prompt, str) or not isinstance(answer, str) or not answer:
        raise BadInputError(f"{where}: prompt and answer, both text, are needed")
    most = given.get("max_tokens", 64)
    if type(most) is not int or most < 1:
        raise BadInputError(f"{where}: max_tokens is a whole number from 1")
    try:
        pattern = re.compile(answer if given.get("regex") is True else rf"(?<!\w){re.escape(answer)}(?!\w)")
    except re.error as error:
        raise BadInputError(f"{where}: answer is no regular expression: {error}") from error
    return Task(prompt, pattern, most)
