"""Who runs when: budget, seats, policies, preemption, samples, adapters, static batches. One millisecond a step."""

from typing import Any

import pytest

from tonnage_core.engine.batch import Batch
from tonnage_core.engine.engine import Engine
from tonnage_core.engine.lora_slots import AdapterSlots
from tonnage_core.engine.types import EngineConfig, EngineRequest, OutputToken, RowResult, StepResult
from tonnage_core.prefix_index.block_hash import hash_blocks, seed_hash


class Tick:
    def seconds(self, batch: Batch) -> float:
        return 0.001

    def swap_seconds(self, tokens: int) -> float:
        return 0.1 * tokens


def _engine(**settings: Any) -> Engine:
    base: dict[str, Any] = {"num_blocks": 101, "max_model_len": 200, "block_size": 4, "max_num_batched_tokens": 64}
    return Engine(EngineConfig(**(base | {"max_num_seqs": 8} | settings)), Tick(), model="m")


def _submit(engine: Engine, name: str, prompt: int = 8, output: int = 4, **fields: Any) -> None:
    base = sum(name.encode()) * 1000
    keys = [base + index for index in range(prompt // engine.config.block_size)]
    fields = {"block_hashes": keys} | fields
    engine.submit(EngineRequest(request_id=name, prompt_tokens=prompt, output_tokens=output, **fields), 0.0)


def _counting_from(start: int) -> OutputToken:
    return lambda sample, index: start + index


def _step(engine: Engine) -> StepResult:
    result = engine.step(engine.clock)
    assert result is not None
    return result


def _rows(result: StepResult) -> dict[str, RowResult]:
    return {row.request_id: row for row in result.rows}


def _finish_order(engine: Engine) -> list[str]:
    return [timeline.request_id for timeline in engine.run_until(1e9)]


def test_running_requests_decode_before_waiting_ones_get_the_rest_of_the_budget() -> None:
    engine = _engine(max_num_batched_tokens=10, max_num_seqs=4)
    _submit(engine, "a", prompt=8)
    _step(engine)
    _submit(engine, "b", prompt=20)
    rows = _rows(_step(engine))
    assert rows["a"].new_tokens == ((0, 1),)
    assert rows["b"].prefill_tokens == 9
    assert not rows["b"].new_tokens


def test_a_step_reports_hits_once_when_it_first_schedules_a_request() -> None:
    engine = _engine()
    _submit(engine, "a", prompt=12, output=3)
    assert _rows(_step(engine))["a"].hit_tokens == 0
    assert _rows(_step(engine))["a"].hit_tokens is None


def test_a_fully_cached_prompt_recomputes_its_last_block() -> None:
    engine = _engine()
    keys = [1, 2, 3]
    _submit(engine, "a", prompt=12, output=1, block_hashes=keys)
    _step(engine)
    _submit(engine, "b", prompt=12, output=1, block_hashes=keys)
    row = _rows(_step(engine))["b"]
    assert (row.hit_tokens, row.prefill_tokens) == (8, 4)


def test_blocks_are_hits_as_soon_as_they_are_scheduled() -> None:
    engine = _engine()
    for name in ("a", "b"):
        _submit(engine, name, prompt=13, block_hashes=[1, 2, 3])
    rows = _rows(_step(engine))
    assert (rows["a"].prefill_tokens, rows["b"].prefill_tokens) == (13, 1)


def test_generated_blocks_serve_a_follow_up_prompt_but_for_the_last_token_that_was_never_computed() -> None:
    def token(sample: int, index: int) -> int:
        return 50 + index

    engine = _engine()
    tokens = [*range(10), *(token(0, index) for index in range(7))]
    seed = seed_hash("m", None, None)
    first = hash_blocks(seed, tokens[:10], 4)
    _submit(engine, "a", prompt=10, output=7, block_hashes=first, tail=(8, 9), output_token=token)
    engine.run_until(1.0)
    follow = hash_blocks(seed, [*tokens, 1, 2, 3], 4)
    _submit(engine, "b", prompt=20, block_hashes=follow)
    assert _rows(_step(engine))["b"].hit_tokens == 16


def test_seats_limit_how_many_run() -> None:
    engine = _engine(max_num_seqs=2)
    for name in "abc":
        _submit(engine, name)
    _step(engine)
    assert (engine.stats.running, engine.stats.waiting) == (2, 1)


def test_a_request_is_admitted_only_when_all_of_its_prompt_fits() -> None:
    engine = _engine(num_blocks=51, max_num_batched_tokens=16)
    _submit(engine, "a", prompt=120, output=50)
    _step(engine)
    _submit(engine, "b", prompt=100)
    assert "b" not in _rows(_step(engine))


def test_the_last_to_arrive_is_preempted_and_goes_first_again() -> None:
    engine = _engine(num_blocks=51, max_num_batched_tokens=200)
    for name in "abc":
        _submit(engine, name, prompt=64, output=40)
    preempted = [row.request_id for _ in range(30) for row in _step(engine).rows if row.preempted]
    assert preempted == ["c"]
    assert [s.request.request_id for s in engine.scheduler.waiting] == ["c"]
    assert _finish_order(engine) == ["a", "b", "c"]


def test_a_recomputed_request_reuses_what_is_still_cached_of_it() -> None:
    engine = _engine(num_blocks=71, max_num_batched_tokens=200)
    for name in "abc":
        _submit(engine, name, prompt=64, output=40)
    resumed = [row for _ in range(50) for row in _step(engine).rows if row.request_id == "c" and row.prefill_tokens]
    assert resumed[0].prefill_tokens == 64
    assert 0 < resumed[1].prefill_tokens < 92 - 64
    assert engine.counters.query_tokens == 3 * 64


def test_a_swapped_request_computes_nothing_twice_but_pays_for_the_transfer() -> None:
    engine = _engine(num_blocks=71, max_num_batched_tokens=200, preemption="swap")
    for name in "abc":
        _submit(engine, name, prompt=64, output=40)
    results = [_step(engine) for _ in range(50)]
    assert sum(row.prefill_tokens for result in results for row in result.rows) == 3 * 64
    slow = [result for result in results if result.duration_s > 1]
    assert len(slow) == 2
    assert engine.stats.counters.swapped_out_blocks == engine.stats.counters.swapped_in_blocks > 0


def test_without_host_blocks_a_swap_falls_back_to_recompute() -> None:
    engine = _engine(num_blocks=51, max_num_batched_tokens=200, preemption="swap", swap_blocks=3)
    for name in "abc":
        _submit(engine, name, prompt=64, output=40)
    engine.run_until(10.0)
    assert engine.stats.counters.swapped_out_blocks == 0
    assert engine.stats.counters.preemptions > 0


def test_an_abort_gives_the_host_blocks_of_a_swapped_request_back() -> None:
    engine = _engine(num_blocks=51, max_num_batched_tokens=200, preemption="swap")
    for name in "abc":
        _submit(engine, name, prompt=64, output=40)
    while not engine.scheduler.preemption.host_used:
        _step(engine)
    assert engine.abort("c", engine.clock)
    assert engine.scheduler.preemption.host_used == 0


def test_priority_runs_lower_numbers_first_and_preempts_the_highest() -> None:
    engine = _engine(policy="priority", max_num_seqs=1, max_num_batched_tokens=200)
    for name, priority in (("a", 5), ("b", 1), ("c", 3)):
        _submit(engine, name, priority=priority)
    assert _finish_order(engine) == ["b", "c", "a"]


def test_priority_preempts_a_request_scheduled_earlier_in_the_same_step() -> None:
    engine = _engine(num_blocks=51, policy="priority", max_num_batched_tokens=200)
    for name, priority in (("a", 9), ("b", 1), ("c", 1)):
        _submit(engine, name, prompt=64, output=40, priority=priority)
    preempted = [row.request_id for _ in range(30) for row in _step(engine).rows if row.preempted]
    assert preempted == ["a"]


def test_tokens_of_a_preempted_row_go_back_to_the_steps_budget() -> None:
    engine = _engine(
        num_blocks=15, max_model_len=56, policy="priority", long_prefill_token_threshold=4, max_num_batched_tokens=8
    )
    _submit(engine, "low", prompt=4, output=30, priority=9)
    _step(engine)
    _submit(engine, "b", prompt=40, priority=1)
    _submit(engine, "c", prompt=32, priority=1)
    shares: list[dict[str, int]] = []
    while not shares or "low" in shares[-1]:
        rows = _rows(_step(engine))
        shares.append({name: row.prefill_tokens or 1 for name, row in rows.items() if not row.preempted})
    assert shares[0] == {"low": 1, "b": 4, "c": 3}
    assert shares[-1] == {"b": 4, "c": 4}


def test_a_long_prompt_is_held_to_the_threshold_only_when_somebody_else_is_there() -> None:
    engine = _engine(long_prefill_token_threshold=10)
    _submit(engine, "a", prompt=60)
    assert _rows(_step(engine))["a"].prefill_tokens == 60
    _submit(engine, "b", prompt=40)
    assert _rows(_step(engine))["b"].prefill_tokens == 10


def test_samples_share_the_prompts_blocks_and_copy_the_partial_one() -> None:
    engine = _engine()
    _submit(engine, "a", prompt=10, output=4, n=3)
    row = _rows(_step(engine))["a"]
    assert row.new_tokens == ((0, 0), (1, 0), (2, 0))
    tables = [sequence.blocks for sequence in engine.scheduler.running]
    assert tables[0] == tables[1] == tables[2]
    _step(engine)
    tables = [sequence.blocks for sequence in engine.scheduler.running]
    assert tables[0][:2] == tables[1][:2] == tables[2][:2]
    assert len({table[2] for table in tables}) == 3
    assert engine.stats.counters.copied_blocks == 2
    assert engine.counters.prompt_tokens == 10


def test_samples_need_a_seat_each() -> None:
    engine = _engine(max_num_seqs=3)
    _submit(engine, "a", n=2)
    _submit(engine, "b", n=2)
    assert set(_rows(_step(engine))) == {"a"}


def test_a_request_ends_with_its_last_sample() -> None:
    engine = _engine()
    _submit(engine, "a", output=1, n=2)
    row = _rows(_step(engine))["a"]
    assert (row.finished, row.finish_reason) == ((0, 1), "length")


def test_requests_without_room_for_their_adapter_are_passed_over_in_their_order() -> None:
    engine = _engine(adapter_slots=1, adapter_load_s=0.5, adapter_fetch_s=2.0)
    for name, adapter in (("a", "x"), ("b", "y"), ("c", None), ("d", "y"), ("e", "x")):
        _submit(engine, name, adapter=adapter)
    result = _step(engine)
    assert set(_rows(result)) == {"a", "c", "e"}
    assert result.deferred == ("b", "d")
    assert result.duration_s == pytest.approx(2.501)
    stats = engine.stats
    assert (stats.waiting, stats.deferred) == (2, 2)
    assert stats.running_adapters == {"x": 2}
    assert stats.waiting_adapters == {"y": 2}
    assert _finish_order(engine) == ["a", "c", "e", "b", "d"]


def test_an_adapter_in_host_memory_loads_without_a_fetch() -> None:
    engine = _engine(adapter_slots=1, adapter_host_slots=2, adapter_load_s=0.5, adapter_fetch_s=2.0)
    for name, adapter in (("a", "x"), ("b", "y"), ("c", "x")):
        _submit(engine, name, adapter=adapter, output=1)
        engine.run_until(1e9)
    assert (engine.adapters.loads, engine.adapters.fetches) == (3, 2)
    assert engine.adapters.resident == ("x",)


def test_a_static_batch_keeps_newcomers_out_until_its_last_row_has_ended() -> None:
    engine = _engine(batching="static")
    _submit(engine, "a", output=2)
    _submit(engine, "b", output=9)
    _step(engine)
    _submit(engine, "c", output=2)
    assert _finish_order(engine) == ["a", "b", "c"]


def test_a_static_batch_takes_no_more_prompts_than_the_blocks_will_hold() -> None:
    engine = _engine(batching="static", num_blocks=31, max_model_len=100, max_num_batched_tokens=16)
    for name in "abc":
        _submit(engine, name, prompt=48, output=4)
    _step(engine)
    assert (engine.stats.running, engine.stats.waiting) == (2, 1)
    engine.run_until(1.0)
    assert engine.counters.preemptions == 0


def test_the_least_recently_used_adapter_leaves_its_slot_and_then_host_memory() -> None:
    slots = AdapterSlots(2, 3, load_s=1.0, fetch_s=10.0)
    assert [slots.use([name]) for name in ("a", "b", "a", "c")] == [11.0, 11.0, 0.0, 11.0]
    assert slots.resident == ("a", "c")
    assert slots.use(["b"]) == 1.0
    assert slots.use(["d"]) == 11.0
    assert slots.use(["a"]) == 11.0


def test_finished_rows_of_a_static_batch_still_cost_time() -> None:
    rows: list[int] = []

    class Counting(Tick):
        def seconds(self, batch: Batch) -> float:
            rows.append(batch.decode_rows)
            return 0.001

    config = EngineConfig(num_blocks=101, max_model_len=200, max_num_seqs=8, batching="static")
    engine = Engine(config, Counting())
    for name, output in (("a", 2), ("b", 5)):
        engine.submit(EngineRequest(request_id=name, prompt_tokens=3, output_tokens=output), 0.0)
    engine.run_until(1.0)
    assert rows == [0, 2, 2, 2, 2]


def test_an_abort_frees_the_blocks_and_keeps_the_cache() -> None:
    engine = _engine()
    _submit(engine, "a", prompt=20, block_hashes=[1, 2, 3, 4, 5])
    _step(engine)
    assert engine.abort("a", engine.clock)
    assert engine.stats.kv_usage == 0
    _submit(engine, "b", prompt=21, block_hashes=[1, 2, 3, 4, 5])
    assert _rows(_step(engine))["b"].hit_tokens == 20


@pytest.mark.parametrize(("reason", "cached"), [("length", 12), ("stop", 11)])
def test_a_request_that_stops_by_itself_has_had_a_block_taken_for_one_more_token(reason: str, cached: int) -> None:
    engine = _engine(num_blocks=13, max_model_len=48)
    _submit(engine, "a", prompt=32, output=1)
    engine.run_until(1.0)
    _submit(engine, "b", prompt=8, output=9, finish_reason=reason)
    engine.run_until(2.0)
    assert engine.stats.cached_blocks == cached


def test_without_prefix_caching_nothing_hits_and_nothing_is_counted() -> None:
    engine = _engine(enable_prefix_caching=False)
    for name in "ab":
        _submit(engine, name, prompt=20, block_hashes=[1, 2, 3, 4, 5])
        engine.run_until(1e9)
    assert (engine.counters.query_tokens, engine.counters.hit_tokens) == (0, 0)


def test_jitter_follows_the_seed() -> None:
    def ends(seed: int) -> float:
        config = EngineConfig(num_blocks=101, max_model_len=200, step_jitter=0.3)
        engine = Engine(config, Tick(), seed=seed)
        engine.submit(EngineRequest(request_id="a", prompt_tokens=3, output_tokens=50), 0.0)
        return engine.run_until(1.0)[0].finished_s

    assert ends(1) == ends(1) != ends(2)
    assert ends(1) == pytest.approx(0.05, rel=0.2)
