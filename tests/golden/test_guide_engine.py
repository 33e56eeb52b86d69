"""The guide's worked engine numbers, from the engine itself."""

from tonnage_core.engine.batch import Batch
from tonnage_core.engine.engine import Engine
from tonnage_core.engine.types import EngineConfig, EngineRequest


class Tick:
    """Every step takes a millisecond."""

    def seconds(self, batch: Batch) -> float:
        return 0.001

    def swap_seconds(self, tokens: int) -> float:
        return 0.0


def _request(name: str, prompt: int, keys: list[int], output: int = 8) -> EngineRequest:
    return EngineRequest(request_id=name, prompt_tokens=prompt, output_tokens=output, block_hashes=keys)


def test_112_of_125_blocks_are_reused_when_1800_of_2000_tokens_are_shared() -> None:
    engine = Engine(EngineConfig(num_blocks=1000, max_model_len=4000), Tick())
    engine.submit(_request("first", 2000, list(range(125))), 0.0)
    engine.run_until(1.0)
    engine.submit(_request("second", 2000, [*range(112), *range(1000, 1013)]), 1.0)
    result = engine.step(1.0)
    assert result is not None
    (row,) = result.rows
    assert row.hit_tokens == 112 * 16 == 1792
    assert row.prefill_tokens == 208


def test_an_8000_token_prompt_is_prefilled_in_5_steps_at_budget_2048_beside_100_decodes() -> None:
    engine = Engine(EngineConfig(num_blocks=2000, max_model_len=9000, max_num_batched_tokens=2048), Tick())
    for index in range(100):
        engine.submit(_request(f"decode{index}", 8, [], output=100), 0.0)
    engine.step(0.0)
    engine.submit(_request("long", 8000, list(range(500))), 0.0)
    chunks = []
    while True:
        result = engine.step(0.0)
        assert result is not None
        (row,) = [row for row in result.rows if row.request_id == "long"]
        if not row.prefill_tokens:
            break
        chunks.append(row.prefill_tokens)
    assert chunks == [1948, 1948, 1948, 1948, 208]
