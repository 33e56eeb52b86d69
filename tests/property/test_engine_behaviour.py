"""Any workload on any small engine: budgets kept, everybody ends, aborts free everything, running ahead is exact."""

from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tonnage_core.engine.batch import Batch
from tonnage_core.engine.engine import Engine
from tonnage_core.engine.types import EngineConfig, EngineRequest, OutputToken, RequestTimeline
from tonnage_core.prefix_index.block_hash import hash_blocks, seed_hash


class Roof:
    """A step time that depends on everything in the batch, so that a wrong sum shows."""

    def seconds(self, batch: Batch) -> float:
        work = 0.001 + batch.prefill_tokens * 1.1e-5 + batch.prefill_pairs * 1.3e-8 + batch.prefill_context * 1.7e-7
        return work + batch.decode_rows * 1.9e-5 + batch.decode_context * 2.3e-7 + batch.sampled_rows * 2.9e-6

    def swap_seconds(self, tokens: int) -> float:
        return tokens * 3.1e-6


@dataclass(frozen=True)
class Arrival:
    at: float
    request: EngineRequest


def configs() -> st.SearchStrategy[EngineConfig]:
    return st.builds(
        EngineConfig,
        block_size=st.sampled_from([1, 2, 4]),
        num_blocks=st.integers(41, 60),
        max_model_len=st.just(40),
        max_num_seqs=st.integers(2, 5),
        max_num_batched_tokens=st.integers(5, 24),
        long_prefill_token_threshold=st.sampled_from([0, 0, 3]),
        policy=st.sampled_from(["fcfs", "priority"]),
        batching=st.sampled_from(["continuous", "continuous", "static"]),
        preemption=st.sampled_from(["recompute", "swap"]),
        swap_blocks=st.sampled_from([None, 4]),
        enable_prefix_caching=st.booleans(),
        adapter_slots=st.sampled_from([1, 2]),
        adapter_host_slots=st.integers(0, 3),
        step_jitter=st.sampled_from([0.0, 0.2]),
    )


def _counting_on(length: int) -> OutputToken:
    """Output that goes on where a wholly shared prompt stops, and fills blocks that longer prompts begin with."""
    return lambda sample, index: 1 + length + index


@st.composite
def workloads(draw: st.DrawFn) -> tuple[EngineConfig, list[Arrival]]:
    config = draw(configs())
    arrivals: list[Arrival] = []
    at = 0.0
    for index in range(draw(st.integers(1, 10))):
        at += draw(st.sampled_from([0.0, 0.0, 0.004, 0.05]))
        length = draw(st.integers(1, 25))
        shared = draw(st.sampled_from([length, draw(st.integers(0, length))]))
        prompt = [1 + place if place < shared else 100 * (index + 1) + place for place in range(length)]
        adapter = draw(st.sampled_from([None, None, "a", "b", "c"]))
        full = length - length % config.block_size
        arrivals.append(
            Arrival(
                at,
                EngineRequest(
                    request_id=f"r{index}",
                    prompt_tokens=length,
                    output_tokens=draw(st.integers(1, 15)),
                    block_hashes=hash_blocks(seed_hash("m", adapter, None), prompt, config.block_size),
                    tail=tuple(prompt[full:]),
                    n=draw(st.sampled_from([1, 1, 1, 2])),
                    finish_reason=draw(st.sampled_from(["length", "stop"])),
                    priority=draw(st.integers(0, 2)),
                    adapter=adapter,
                    output_token=draw(st.sampled_from([None, _counting_on(length)])),
                ),
            )
        )
    return config, arrivals


def _check(engine: Engine) -> None:
    """Block tables, references and the free queue agree; a table is as long as its tokens need."""
    pool, size = engine.kv.pool, engine.config.block_size
    running = engine.scheduler.running
    held = Counter(block for sequence in running for block in sequence.blocks)
    assert all(pool.references(block) == held[block] for block in range(engine.config.num_blocks))
    assert pool.free == engine.config.num_blocks - 1 - len(held)
    for sequence in running:
        assert sequence.computed <= len(sequence.blocks) * size < sequence.tokens + 1 + size
        for index, key in enumerate(sequence.keys(0, sequence.published)):
            assert pool.key(sequence.blocks[index]) == key
    assert not any(sequence.blocks for sequence in engine.scheduler.waiting)


def _step_through(config: EngineConfig, arrivals: list[Arrival]) -> tuple[Engine, list[tuple[float, float, int]]]:
    """Every request by single steps; returns each one's finish time, first-token time and hits."""
    engine = Engine(config, Roof(), model="m", seed=3)
    pending = list(arrivals)
    seen: dict[str, tuple[float, float, int]] = {}
    first: dict[str, float] = {}
    hits: dict[str, int] = {}
    clock = 0.0
    for _ in range(20_000):
        while pending and (pending[0].at <= clock or engine.next_event() is None):
            arrival = pending.pop(0)
            clock = max(clock, arrival.at)
            engine.submit(arrival.request, arrival.at)
        result = engine.step(clock)
        if result is None:
            if not pending:
                break
            continue
        clock = result.end_s
        assert result.scheduled_tokens <= config.max_num_batched_tokens
        assert engine.stats.running <= config.max_num_seqs
        _check(engine)
        for row in result.rows:
            if row.first_scheduled:
                hits[row.request_id] = row.hit_tokens or 0
            if row.new_tokens:
                first.setdefault(row.request_id, clock)
            if row.finish_reason:
                seen[row.request_id] = (clock, first[row.request_id], hits[row.request_id])
    return engine, [seen[arrival.request.request_id] for arrival in arrivals]


def _run_ahead(config: EngineConfig, arrivals: list[Arrival]) -> tuple[Engine, list[RequestTimeline]]:
    engine = Engine(config, Roof(), model="m", seed=3, keep_gaps=True)
    ended: list[RequestTimeline] = []
    for arrival in arrivals:
        ended += engine.run_until(arrival.at)
        engine.submit(arrival.request, arrival.at)
    ended += engine.run_until(float("inf"))
    by_id = {timeline.request_id: timeline for timeline in ended}
    return engine, [by_id[arrival.request.request_id] for arrival in arrivals]


@given(workloads())
@settings(max_examples=150, deadline=None)
def test_budgets_are_kept_and_every_request_ends_with_all_its_tokens(
    workload: tuple[EngineConfig, list[Arrival]],
) -> None:
    config, arrivals = workload
    engine, ended = _step_through(config, arrivals)
    assert len(ended) == len(arrivals)
    stats = engine.stats
    assert (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0.0)
    wanted = sum(arrival.request.output_tokens * arrival.request.n for arrival in arrivals)
    assert stats.counters.generation_tokens == wanted
    assert stats.counters.finished == len(arrivals)
    assert stats.counters.prompt_tokens == sum(arrival.request.prompt_tokens for arrival in arrivals)
    assert stats.counters.swapped_in_blocks == stats.counters.swapped_out_blocks
    assert engine.scheduler.preemption.host_used == 0


@given(workloads())
@settings(max_examples=200, deadline=None)
def test_running_ahead_gives_the_counters_hits_and_times_of_single_steps(
    workload: tuple[EngineConfig, list[Arrival]],
) -> None:
    config, arrivals = workload
    stepped, one_by_one = _step_through(config, arrivals)
    skipped, ahead = _run_ahead(config, arrivals)
    assert skipped.stats.counters == stepped.stats.counters
    assert skipped.kv.pool.eviction_order == stepped.kv.pool.eviction_order
    assert skipped.adapters.resident == stepped.adapters.resident
    assert [(t.finished_s, t.first_token_s, t.hit_tokens) for t in ahead] == one_by_one
    for timeline, arrival in zip(ahead, arrivals, strict=True):
        assert len(timeline.gaps_s) == arrival.request.n * (arrival.request.output_tokens - 1)


@given(workloads())
@settings(max_examples=80, deadline=None)
def test_first_come_is_first_served_so_nobody_starves(workload: tuple[EngineConfig, list[Arrival]]) -> None:
    config, arrivals = workload
    plain = [Arrival(a.at, replace(a.request, adapter=None)) for a in arrivals]
    _, timelines = _run_ahead(replace(config, policy="fcfs"), plain)
    starts = [timeline.scheduled_s for timeline in timelines]
    assert None not in starts
    assert starts == sorted(starts, key=lambda at: at or 0.0)


@given(workloads(), st.data())
@settings(max_examples=100, deadline=None)
def test_aborts_anywhere_free_everything(workload: tuple[EngineConfig, list[Arrival]], data: st.DataObject) -> None:
    config, arrivals = workload
    engine = Engine(config, Roof(), model="m")
    for arrival in arrivals:
        engine.submit(arrival.request, 0.0)
    clock = 0.0
    for arrival in arrivals:
        for _ in range(data.draw(st.integers(0, 6))):
            result = engine.step(clock)
            clock = result.end_s if result else clock
        engine.abort(arrival.request.request_id, clock)
        _check(engine)
    assert engine.step(clock) is None
    stats = engine.stats
    assert (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0.0)
    assert engine.scheduler.preemption.host_used == 0
    assert stats.counters.finished + stats.counters.aborted == len(arrivals)
