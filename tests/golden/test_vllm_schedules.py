"""The engine model decides what vLLM 0.32's own scheduler decided, step by step, on recorded random workloads.

`record_vllm_schedules.py` made the record: which requests each step computed, in which order and how many tokens, who
was preempted, prefix hits, who ended, queue lengths, free and cached blocks.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tonnage_core.engine.batch import Batch
from tonnage_core.engine.engine import Engine
from tonnage_core.engine.types import EngineConfig, EngineRequest
from tonnage_core.prefix_index.block_hash import hash_blocks, seed_hash

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vllm_schedules.json").read_text())["cases"]


class Tick:
    def seconds(self, batch: Batch) -> float:
        return 1.0

    def swap_seconds(self, tokens: int) -> float:
        return 0.0


def _token(number: int) -> Callable[[int, int], int]:
    return lambda sample, index: 100 + (7 * number + 3 * index) % 50


def _request(number: int, arrival: list[Any], block_size: int) -> EngineRequest:
    _, prompt, shared, output, priority, adapter = arrival
    tokens = [place if place < shared else 1000 * (number + 1) + place for place in range(prompt)]
    return EngineRequest(
        request_id=str(number),
        prompt_tokens=prompt,
        output_tokens=output,
        block_hashes=hash_blocks(seed_hash("m", adapter, None), tokens, block_size),
        tail=tuple(tokens[prompt - prompt % block_size :]),
        priority=priority,
        adapter=adapter,
        output_token=_token(number),
    )


def _step(engine: Engine) -> list[Any]:
    result = engine.step(engine.clock)
    rows = result.rows if result else ()
    ran = [row for row in rows if not row.preempted]
    stats = engine.stats
    return [
        [[int(row.request_id), row.prefill_tokens or 1] for row in ran],
        sorted(int(row.request_id) for row in rows if row.preempted),
        [[int(row.request_id), row.hit_tokens] for row in ran if row.hit_tokens is not None],
        sorted(int(row.request_id) for row in ran if row.finish_reason),
        stats.running,
        stats.waiting,
        stats.deferred,
        engine.kv.pool.free,
        stats.cached_blocks,
    ]


def test_the_record_holds_preemptions_hits_deferrals_and_aborts() -> None:
    steps = [step for case in CASES for step in case["steps"]]
    assert len(steps) > 5000
    assert sum(len(step[1]) for step in steps) > 100
    assert sum(hit for step in steps for _, hit in step[2]) > 2000
    assert sum(step[6] > 0 for step in steps) > 100
    assert sum(len(case["aborts"]) for case in CASES) > 20


@pytest.mark.parametrize("case", range(len(CASES)))
def test_every_step_is_what_vllm_did(case: int) -> None:
    config, arrivals = CASES[case]["config"], list(enumerate(CASES[case]["arrivals"]))
    engine = Engine(EngineConfig(**config), Tick(), model="m")
    for number, expected in enumerate(CASES[case]["steps"]):
        while arrivals and arrivals[0][1][0] <= number:
            index, arrival = arrivals.pop(0)
            engine.submit(_request(index, arrival, config["block_size"]), engine.clock)
        for at, index in CASES[case]["aborts"]:
            if at == number:
                engine.abort(str(index), engine.clock)
        found = _step(engine)
        expected[1], expected[3] = sorted(expected[1]), sorted(expected[3])
        # vLLM reports hits until the first output; the model once, when the request is first scheduled.
        known = {index for index, _ in found[2]}
        expected[2] = [hit for hit in expected[2] if hit[0] in known]
        assert found == expected, f"step {number}"
