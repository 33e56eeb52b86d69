"""Makes a run by `python -m tonnage_loadgen.bench_step`, which ends when this process does: it holds its input."""

import asyncio
import contextlib
import sys
from typing import Any

import orjson

RESULT_LIMIT = 64 << 20
"""Largest result, bytes."""
CHECK_S = 60.0
"""A check reads at most some texts of 16 MiB, and other jobs wait for it."""
_SAID = 2000


class StepProcess:
    """A `StepRunner` with one process a run."""

    async def run(self, question: dict[str, Any]) -> dict[str, Any]:
        """The result; a process that fails is an error of kind `failed`. Cancelled: the process is killed."""
        try:
            process = await _started()
        except OSError as error:
            return _failed(f"the run's process cannot start: {error}")
        try:
            return await _talk(process, question)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def refused(self, question: dict[str, Any]) -> str | None:
        """What a process that draws no load says against the runs; one that fails or hangs says nothing of them."""
        try:
            async with asyncio.timeout(CHECK_S):
                error = (await self.run(question)).get("error", {})
        except TimeoutError:
            return None
        return str(error["message"]) if error.get("kind") == "input" else None


async def _started() -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "tonnage_loadgen.bench_step")
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, limit=RESULT_LIMIT)


async def _talk(process: asyncio.subprocess.Process, question: dict[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    said = asyncio.create_task(process.stderr.read())
    try:
        with contextlib.suppress(ConnectionError):
            process.stdin.write(orjson.dumps(question) + b"\n")
            await process.stdin.drain()
        try:
            line = await process.stdout.readline()
        except ValueError:
            return _failed(f"the result is over {RESULT_LIMIT >> 20} MiB: make shorter runs")
        if line.endswith(b"\n"):
            found = orjson.loads(line)
            if isinstance(found, dict):
                return found
        code = await process.wait()
        words = (await said).decode("utf-8", "replace").strip().splitlines()
        return _failed(f"the run's process ended with {code}: {(words or ['it said nothing'])[-1][:_SAID]}")
    finally:
        said.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await said


def _failed(message: str) -> dict[str, Any]:
    return {"error": {"kind": "failed", "message": message}}
