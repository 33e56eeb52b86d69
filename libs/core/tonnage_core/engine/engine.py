"""The engine: submit, abort, step, and run ahead between events."""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

from tonnage_core.engine.advance import Advance, Row
from tonnage_core.engine.batch import Batch, StepClock
from tonnage_core.engine.cache_log import CacheChange
from tonnage_core.engine.config_checks import check_config, check_request
from tonnage_core.engine.errors import DuplicateRequestError
from tonnage_core.engine.jitter import uniform
from tonnage_core.engine.kv_blocks import KvBlocks
from tonnage_core.engine.lora_slots import AdapterSlots
from tonnage_core.engine.plan import Plan
from tonnage_core.engine.run_ahead import stretch
from tonnage_core.engine.scheduler import Scheduler
from tonnage_core.engine.sequence import LiveRequest, Sequence
from tonnage_core.engine.types import (
    BlockKey,
    EngineConfig,
    EngineCounters,
    EngineRequest,
    EngineStats,
    RequestTimeline,
    StepResult,
)


class Engine:
    """One simulated engine. Times are seconds on the caller's clock and must not go backwards.

    A step is decided and applied when it starts; what it produces exists from its end on (`StepResult.end_s`), and the
    next step starts no earlier. `model` tags the block hashes (as `prefix_index.block_hash.seed_hash` does), `seed` the
    step jitter; `keep_gaps` records the time between tokens in each request's timeline.
    """

    def __init__(
        self, config: EngineConfig, step_time: StepClock, *, model: str = "", seed: int = 0, keep_gaps: bool = False
    ) -> None:
        check_config(config)
        self.config = config
        self.clock = 0.0
        """When the last step ends, or when work came to an idle engine: the earliest start of the next step."""
        self.counters = EngineCounters()
        self.kv = KvBlocks(config, model)
        self.scheduler = Scheduler(config, self.kv)
        self.adapters = AdapterSlots(
            config.adapter_slots, config.adapter_host_slots, config.adapter_load_s, config.adapter_fetch_s
        )
        self._seed = seed
        self._keep_gaps = keep_gaps
        self._step_time = step_time
        self._advance = Advance(self.scheduler, self.counters, keep_gaps=keep_gaps)
        self._live: dict[str, LiveRequest] = {}
        self._submitted = 0

    def record_cache(self) -> None:
        """Keep what happens to the prefix cache from here on, for `cache_changes`."""
        self.kv.pool.log = []

    def cache_changes(self) -> list[CacheChange]:
        """Changes since the last call, in order; none unless recorded."""
        log = self.kv.pool.log
        if not log:
            return []
        self.kv.pool.log = []
        return log

    def cached_prefix(self, keys: SequenceOf[BlockKey]) -> int:
        """Leading blocks of `keys` that are in the prefix cache."""
        return len(self.kv.pool.cache.longest_prefix(keys))

    def import_prefix(self, keys: SequenceOf[BlockKey]) -> int:
        """Blocks brought in from elsewhere become cached and unheld, as far as there is room; how many were new."""
        return self.kv.import_prefix(keys)

    def submit(self, request: EngineRequest, now: float) -> None:
        """Queue a request; raises RequestTooLongError, DuplicateRequestError or BadRequestError."""
        check_request(request, self.config)
        if request.request_id in self._live:
            raise DuplicateRequestError(f"request id {request.request_id!r} is already in the engine; use another")
        if not self._live:
            self.clock = max(self.clock, now)
        live = LiveRequest(request, self._submitted, now, unfinished=request.n)
        self._submitted += 1
        self._live[request.request_id] = live
        self.scheduler.add(Sequence(live=live, sample=0, prompt=request.prompt_tokens))

    def abort(self, request_id: str, now: float) -> bool:
        """Drop a request and free what it holds; False when the engine does not know it (any more)."""
        live = self._live.pop(request_id, None)
        if live is None:
            return False
        for sequence in [s for s in (*self.scheduler.running, *self.scheduler.waiting) if s.live is live]:
            self.scheduler.withdraw(sequence)
        self.counters.aborted += 1
        return True

    def step(self, now: float) -> StepResult | None:
        """Run one iteration that starts at `now`, or when the last one ends; None when there is nothing to run."""
        if not self._live:
            return None
        start = self.clock = max(self.clock, now)
        plan, rows = self._iterate()
        self._advance.ended.clear()
        self._advance.started.clear()
        return StepResult(
            start_s=start,
            duration_s=self.clock - start,
            rows=tuple(row.result() for row in rows),
            scheduled_tokens=plan.scheduled_tokens,
            deferred=tuple(sequence.request.request_id for sequence in plan.deferred),
        )

    def next_event(self) -> float | None:
        """When the engine will next start a step of its own accord; None when it is idle."""
        return self.clock if self._live else None

    def run_until(self, until: float) -> list[RequestTimeline]:
        """Run every step that starts before `until`; returns the requests that finished, in order."""
        self._advance.started.clear()
        while self._live and self.clock < until:
            if not self._run_ahead(until):
                self._iterate()
        ended, self._advance.ended = self._advance.ended, []
        return ended

    def first_tokens(self) -> list[tuple[float, str]]:
        """(time, request id) of the first tokens that came out of the last `run_until`, in order."""
        return list(self._advance.started)

    @property
    def stats(self) -> EngineStats:
        """A snapshot of queues, memory and counters."""
        scheduler = self.scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            deferred=len(scheduler.deferred),
            kv_usage=self.kv.pool.usage,
            cached_blocks=len(self.kv.pool.cache),
            running_adapters=_by_adapter(scheduler.running),
            waiting_adapters=_by_adapter(scheduler.waiting),
            counters=self._counted(),
        )

    def _counted(self) -> EngineCounters:
        counters, preemption = self.counters, self.scheduler.preemption
        counters.evicted_blocks = self.kv.pool.evicted
        counters.copied_blocks = self.kv.copied
        counters.swapped_out_blocks = preemption.swapped_out
        counters.swapped_in_blocks = preemption.swapped_in
        counters.adapter_loads = self.adapters.loads
        counters.adapter_fetches = self.adapters.fetches
        return replace(counters)

    def _iterate(self) -> tuple[Plan, list[Row]]:
        """One step from `clock` on; one that preempted everybody takes no time, so the next follows at once."""
        preempted: list[Sequence] = []
        while True:
            plan = self.scheduler.schedule()
            preempted += plan.preempted
            if plan.rows:
                break
        start = self.clock
        self._advance.scheduled(plan.admitted, start)
        self.clock = start + self._duration(plan)
        rows = self._advance.apply(plan, self.clock)
        self.counters.preemptions += len(preempted)
        for row in rows:
            if row.ended:
                del self._live[row.sequence.request.request_id]
        return plan, rows + [Row(sequence, preempted=True) for sequence in preempted]

    def _duration(self, plan: Plan) -> float:
        extra = self._step_time.swap_seconds(plan.swap_tokens) if plan.swap_tokens else 0.0
        return self._timed(plan.batch, extra + self._use_adapters(sequence for sequence, _ in plan.rows))

    def _use_adapters(self, batch: Iterable[Sequence]) -> float:
        if not self.config.adapter_slots:
            return 0.0
        return self.adapters.use(dict.fromkeys(s.request.adapter for s in batch if s.request.adapter is not None))

    def _timed(self, batch: Batch, extra: float = 0.0) -> float:
        seconds = self._step_time.seconds(batch)
        if self.config.step_jitter:
            seconds *= 1 + self.config.step_jitter * (2 * uniform(self._seed, self.counters.steps) - 1)
        seconds += extra
        self.counters.steps += 1
        self.counters.busy_s += seconds
        return seconds

    def _run_ahead(self, until: float) -> bool:
        steps = stretch(self.scheduler, self._timed, self.clock, until, keep_gaps=self._keep_gaps)
        if not steps:
            return False
        self._use_adapters(self.scheduler.running)
        self.counters.generation_tokens += len(steps) * len(self.scheduler.running)
        self.clock = steps[-1]
        return True


def _by_adapter(sequences: Iterable[Sequence]) -> dict[str, int]:
    return dict(Counter(s.request.adapter for s in sequences if s.request.adapter is not None))
