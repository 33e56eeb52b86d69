"""A load over several processes with one start: each prepares, says so, and begins at the instant it is told.

`perf_counter` is one clock for all processes of a machine on Linux (CLOCK_MONOTONIC), so instants can be shared.
"""

import asyncio
import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from time import perf_counter

import uvloop

from tonnage_core.errors import TonnageError
from tonnage_loadgen.errors import GeneratorError
from tonnage_loadgen.shard import Shard, ShardResult, measure, prepare, split

LEAD_S = 0.3
"""From the last process being ready to the schedule's zero."""


async def run_load(shard: Shard, processes: int = 1) -> list[ShardResult]:
    """Measure `shard` with up to `processes` processes; one runs here. Raises `TargetError`, `GeneratorError`."""
    shards = split(shard, processes)
    if len(shards) == 1:
        return [await measure(shard, await prepare(shard))]
    context = multiprocessing.get_context("spawn")
    started: list[tuple[SpawnProcess, Connection]] = []
    try:
        for each in shards:
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, each), daemon=True)
            process.start()
            there.close()
            started.append((process, here))
        return await asyncio.to_thread(_conduct, [pipe for _, pipe in started])
    finally:
        for process, pipe in started:
            pipe.close()
            process.terminate()
            await asyncio.to_thread(process.join)


def _conduct(pipes: Sequence[Connection]) -> list[ShardResult]:
    for pipe in pipes:
        _received(pipe)
    start = perf_counter() + LEAD_S
    for pipe in pipes:
        pipe.send(start)
    found = [_received(pipe) for pipe in pipes]
    return [each for each in found if isinstance(each, ShardResult)]


def _received(pipe: Connection) -> object:
    try:
        found = pipe.recv()
    except (EOFError, OSError) as error:
        raise GeneratorError("a process of the load generator died; is there enough memory?") from error
    if isinstance(found, TonnageError):
        raise found
    return found


def _work(pipe: Connection, shard: Shard) -> None:
    try:
        pipe.send(uvloop.run(_worker(pipe, shard)))
    except TonnageError as error:
        pipe.send(error)


async def _worker(pipe: Connection, shard: Shard) -> ShardResult:
    template = await prepare(shard)
    pipe.send("ready")
    return await measure(shard, template, await asyncio.to_thread(pipe.recv))
