"""Running ahead: the same as single steps, where the next event is easily missed. One millisecond a step."""

from typing import Any

import pytest

from tonnage_core.engine.batch import Batch
from tonnage_core.engine.engine import Engine
from tonnage_core.engine.plan import Plan
from tonnage_core.engine.types import EngineConfig, EngineRequest, OutputToken, StepResult
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


def test_many_decode_steps_are_taken_at_once_also_after_samples_have_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    decided: list[int] = []
    engine = _engine(max_model_len=200)
    schedule = engine.scheduler.schedule

    def counting() -> Plan:
        decided.append(1)
        return schedule()

    monkeypatch.setattr(engine.scheduler, "schedule", counting)
    _submit(engine, "a", prompt=10, output=150, n=2)
    engine.run_until(1.0)
    assert engine.counters.steps == 150
    assert len(decided) <= 4


def test_of_two_equal_blocks_the_one_filled_first_serves_whether_steps_are_taken_singly_or_at_once() -> None:
    def first_owner(*, ahead: bool) -> str:
        engine = _engine()
        seed = seed_hash("m", None, None)
        for name, prompt in (("behind", 5), ("ahead", 6)):
            keys = hash_blocks(seed, list(range(prompt)), 4)
            tail = tuple(range(4, prompt))
            _submit(engine, name, prompt, 20, block_hashes=keys, tail=tail, output_token=_counting_from(prompt))
        while engine.clock < 0.008:
            if ahead:
                engine.run_until(0.008)
            else:
                _step(engine)
        (block,) = engine.kv.pool.cache.longest_prefix(hash_blocks(seed, list(range(8)), 4)[1:])
        return next(s.request.request_id for s in engine.scheduler.running if block in s.blocks)

    assert first_owner(ahead=True) == first_owner(ahead=False) == "ahead"


def test_running_ahead_notices_that_generated_text_has_made_room_for_a_waiting_prompt() -> None:
    engine = _engine(num_blocks=13, max_model_len=48)
    seed = seed_hash("m", None, None)
    running = hash_blocks(seed, list(range(5)), 4)
    _submit(engine, "a", 5, 20, block_hashes=running, tail=(4,), output_token=_counting_from(5))
    _submit(
        engine,
        "b",
        45,
        3,
        block_hashes=hash_blocks(seed, list(range(45)), 4),
        tail=(44,),
        output_token=_counting_from(45),
    )
    by_id = {timeline.request_id: timeline for timeline in engine.run_until(1.0)}
    assert by_id["b"].scheduled_s == pytest.approx(0.003)
    assert by_id["b"].hit_tokens == 8


def test_running_ahead_waits_for_a_prompt_that_the_last_steps_budget_had_no_room_for() -> None:
    engine = _engine(max_num_batched_tokens=8)
    _submit(engine, "a", output=100)
    _submit(engine, "b")
    by_id = {timeline.request_id: timeline for timeline in engine.run_until(1.0)}
    assert by_id["b"].scheduled_s == pytest.approx(0.001)
