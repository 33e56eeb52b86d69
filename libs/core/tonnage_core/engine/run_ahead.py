"""Run ahead: many steps that only decode, taken at once, with exactly the result of taking them one by one.

While the same sequences decode, nobody ends, nobody can be admitted and blocks suffice, a step differs from the one
before only in context length. So a stretch costs one addition a step and a constant amount of work a sequence.
"""

from collections.abc import Callable

from tonnage_core.engine.batch import Batch
from tonnage_core.engine.kv_blocks import KvBlocks
from tonnage_core.engine.scheduler import Scheduler
from tonnage_core.engine.sequence import Sequence

Duration = Callable[[Batch], float]
"""Seconds of the next step; each call counts as one step."""


def stretch(scheduler: Scheduler, duration: Duration, clock: float, until: float, *, keep_gaps: bool) -> list[float]:
    """Take the decode steps that start before `until` and change nothing but lengths; returns when each one ends."""
    running = scheduler.running
    most = _steps_to_first_end(scheduler)
    ends_s = _timed(scheduler, duration, clock, until, most) if most > 0 else []
    if ends_s:
        _allocate(scheduler.kv, running, len(ends_s))
        _publish(scheduler.kv, running, len(ends_s))
        for sequence in running:
            _lengthen(sequence, ends_s, keep_gaps=keep_gaps)
    return ends_s


def _steps_to_first_end(scheduler: Scheduler) -> int:
    """Steps that surely end nobody and start nobody; 0 when the next step has to be decided on its own."""
    running = scheduler.running
    if not running:
        return 0
    if len(scheduler.waiting) and not (scheduler.stalled and _waiting_hits_fixed(running)):
        return 0
    if any(sequence.shares_tail or not sequence.decoding for sequence in running):
        return 0
    return min(sequence.request.output_tokens - sequence.outputs for sequence in running) - 1


def _waiting_hits_fixed(running: list[Sequence]) -> bool:
    """Blocks filled by decoding match no waiting prompt: private keys only."""
    return all(sequence.request.output_token is None for sequence in running)


def _timed(scheduler: Scheduler, duration: Duration, clock: float, until: float, most: int) -> list[float]:
    """Ends of the steps that start before `until` and for which there are blocks."""
    running, size = scheduler.running, scheduler.kv.block_size
    needs = _needs(running, size)
    free = scheduler.kv.pool.free
    batch = Batch()
    batch.decode_rows = batch.sampled_rows = len(running) + scheduler.finished_rows
    batch.decode_context = scheduler.finished_context + sum(sequence.tokens for sequence in running)
    ends_s: list[float] = []
    while len(ends_s) < most and clock < until:
        free -= needs[len(ends_s) % size]
        if free < 0:
            break
        clock += duration(batch)
        ends_s.append(clock)
        batch.decode_context += len(running)
    return ends_s


def _needs(running: list[Sequence], block_size: int) -> list[int]:
    """New blocks in the first, second, … step; it repeats every `block_size` steps."""
    needs = [0] * block_size
    for sequence in running:
        needs[len(sequence.blocks) * block_size - sequence.computed] += 1
    return needs


def _allocate(kv: KvBlocks, running: list[Sequence], steps: int) -> None:
    for sequence in running:
        wanted = -(-(sequence.computed + steps) // kv.block_size) - len(sequence.blocks)
        if wanted > 0:
            sequence.blocks += kv.pool.take(wanted)


def _publish(kv: KvBlocks, running: list[Sequence], steps: int) -> None:
    """Publish the blocks that filled up, in the order in which single steps would have."""
    size = kv.block_size
    if not kv.pool.caching:
        return
    filled = [
        (index * size - sequence.computed, row, index)
        for row, sequence in enumerate(running)
        for index in range(sequence.published + 1, (sequence.computed + steps) // size + 1)
    ]
    for _, row, index in sorted(filled):
        kv.publish(running[row], index * size)


def _lengthen(sequence: Sequence, ends_s: list[float], *, keep_gaps: bool) -> None:
    steps = len(ends_s)
    live = sequence.live
    if keep_gaps:
        live.gaps_s.append(ends_s[0] - sequence.last_token_s)
        live.gaps_s.extend(map(float.__sub__, ends_s[1:], ends_s))
    sequence.outputs += steps
    sequence.computed += steps
    sequence.last_token_s = ends_s[-1]
    live.output_tokens += steps
    live.last_token_s = ends_s[-1]
