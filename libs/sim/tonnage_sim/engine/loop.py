"""The engine in real time: one task that runs a step, waits for its end, and hands out what came out of it."""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from tonnage_core.engine.cache_log import CacheChange
from tonnage_core.engine.engine import Engine
from tonnage_core.engine.types import EngineRequest, EngineStats, RowResult, StepResult
from tonnage_sim.engine.clock import EngineClock
from tonnage_sim.engine.observer import Observer
from tonnage_sim.engine.outbox import Outbox
from tonnage_sim.engine.sample import Sample

logger = logging.getLogger(__name__)

_STEPS_A_TURN = 8
"""Steps that are due run back to back, up to this many before other tasks get their turn."""


class CacheWatcher(Protocol):
    """Who hears what happens to the prefix cache."""

    def changed(self, changes: Sequence[CacheChange], samples: Mapping[str, Sample]) -> None:
        """What a step did, as it is decided; `samples` are those in the engine."""

    def step_ended(self) -> None:
        """What was told since the last end exists from now on."""

    def cleared(self) -> None:
        """The cache is empty."""


class EngineLoop:
    """Owns the engine and the samples in it.

    A step that is busy starts where the last one ended, so late timers do not stretch engine time; when the machine is
    too slow for the scale, `lag_s` says by how much the engine is behind.
    """

    def __init__(
        self, make_engine: Callable[[], Engine], clock: EngineClock, observer: Observer, outbox: Outbox
    ) -> None:
        self._make_engine = make_engine
        self._engine = make_engine()
        self._clock = clock
        self._observer = observer
        self.outbox = outbox
        self.cache_watcher: CacheWatcher | None = None
        self._samples: dict[str, Sample] = {}
        self._wake: asyncio.Future[None] | None = None
        self._held = False
        self._going = asyncio.Event()
        self._going.set()
        self._stood_still = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.lag_s = 0.0
        """Engine seconds from a step's end to its delivery, at the last step."""

    @property
    def engine(self) -> Engine:
        """The engine in use."""
        return self._engine

    @property
    def stats(self) -> EngineStats:
        """The engine's queues and counters."""
        return self._engine.stats

    @property
    def busy(self) -> bool:
        """Some sample is in the engine."""
        return bool(self._samples)

    def submit(self, requests: Iterable[tuple[EngineRequest, Sample]]) -> None:
        """Queue samples, all before the next step; raises the engine's errors, and then none of them is queued."""
        now = self._clock.now()
        queued: list[str] = []
        try:
            for request, sample in requests:
                sample.arrived_s = now
                self._engine.submit(request, now)
                queued.append(sample.request_id)
                self._samples[sample.request_id] = sample
        except BaseException:
            self.abort(queued)
            raise
        self._idle.clear()
        self._awake()

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop samples and free what they hold; ids that have ended are passed over."""
        now = self._clock.now()
        for request_id in request_ids:
            if self._samples.pop(request_id, None) is not None:
                self._engine.abort(request_id, now)
        self._settle()

    def end_all(self, reason: str) -> None:
        """End every sample now; its client gets what there is, with this finish reason."""
        now = self._clock.now()
        for sample in list(self._samples.values()):
            self._engine.abort(sample.request_id, now)
            del self._samples[sample.request_id]
            sample.last_token_s = max(sample.last_token_s, now)
            sample.first_token_s = sample.first_token_s or now
            self._observer.finished(sample, reason)
            sample.sink.ended(sample, reason)
        self.outbox.send_urgent()
        self._settle()

    def hold(self, held: bool) -> None:
        """Stop stepping, or go on."""
        self._held = held
        self._stood_still = True
        self._awake()

    def freeze(self, frozen: bool) -> None:
        """Stand still, even with a step in progress, or go on; the hang fault."""
        if frozen:
            self._going.clear()
        else:
            self._going.set()

    async def drained(self) -> None:
        """Wait until nothing is in the engine."""
        await self._idle.wait()

    def reset_prefix_cache(self) -> bool:
        """Forget every cached block; refused (False) while requests hold blocks."""
        if self.busy:
            return False
        self._engine = self._make_engine()
        if self.cache_watcher is not None:
            self.cache_watcher.cleared()
        return True

    async def run(self) -> None:
        """Step for ever; the owner cancels it."""
        turns = 0
        while True:
            await self._thaw()
            result = None if self._held else self._next_step()
            if result is None:
                turns = 0
                self._send(math.inf)
                await self._sleep_until_woken()
                continue
            delay_s = self._clock.wall_until(result.end_s)
            self._send(delay_s)
            if delay_s > 0:
                turns = 0
                await asyncio.sleep(delay_s)
            elif (turns := turns + 1) % _STEPS_A_TURN == 0:
                await asyncio.sleep(0)
            await self._thaw()
            self.lag_s = max(0.0, self._clock.now() - result.end_s)
            self._deliver(result)

    def _send(self, delay_s: float) -> None:
        now_s = asyncio.get_running_loop().time()
        self.outbox.send(now_s, now_s + delay_s)

    async def _thaw(self) -> None:
        if not self._going.is_set():
            await self._going.wait()
            self._stood_still = True

    def _next_step(self) -> StepResult | None:
        start_s = self._engine.next_event()
        if start_s is not None and self._stood_still:
            start_s = max(start_s, self._clock.now())
        self._stood_still = False
        result = None if start_s is None else self._engine.step(start_s)
        if self.cache_watcher is not None:
            self.cache_watcher.changed(self._engine.cache_changes(), self._samples)
        return result

    async def _sleep_until_woken(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    def _awake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _deliver(self, result: StepResult) -> None:
        samples, observer, end_s = self._samples, self._observer, result.end_s
        if self.cache_watcher is not None:
            self.cache_watcher.step_ended()
        for row in result.rows:
            sample = samples.get(row.request_id)
            if sample is None:
                continue
            if row.first_scheduled or row.preempted:
                self._note_schedule(sample, row, result.start_s)
            count = len(row.new_tokens)
            if count:
                sample.produced += count
                observer.tokens(sample, count, end_s)
                sample.sink.tokens(sample, count)
            if row.finished:
                self._finish(sample)
        observer.step(end_s)
        self.outbox.send_urgent()
        self._settle()

    def _note_schedule(self, sample: Sample, row: RowResult, start_s: float) -> None:
        if row.first_scheduled:
            self._observer.scheduled(sample, row, start_s)
        if row.preempted:
            self._observer.preempted(sample)

    def _finish(self, sample: Sample) -> None:
        if self._samples.pop(sample.request_id, None) is not None:
            reason = sample.output.finish_reason
            self._observer.finished(sample, reason)
            sample.sink.ended(sample, reason)

    def _settle(self) -> None:
        if not self._samples:
            self._idle.set()
