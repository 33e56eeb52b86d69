"""What an engine refuses: configurations and requests that cannot work, each with the field and the fix."""

from dataclasses import replace
from typing import Any

import pytest

from tonnage_core.engine.batch import Batch
from tonnage_core.engine.engine import Engine
from tonnage_core.engine.errors import (
    BadEngineConfigError,
    BadRequestError,
    DuplicateRequestError,
    RequestTooLongError,
)
from tonnage_core.engine.types import EngineConfig, EngineRequest

CONFIG = EngineConfig(num_blocks=65, max_model_len=1024)
REQUEST = EngineRequest(request_id="r", prompt_tokens=20, output_tokens=5, block_hashes=[1], tail=(1, 2, 3, 4))


class Tick:
    def seconds(self, batch: Batch) -> float:
        return 0.01

    def swap_seconds(self, tokens: int) -> float:
        return 0.0


def _engine(**changes: Any) -> Engine:
    return Engine(replace(CONFIG, **changes), Tick())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_size": 0}, "block_size is 0; it must be at least 1"),
        ({"num_blocks": 1}, "num_blocks is 1; it must be at least 2"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_num_batched_tokens": 100, "max_num_seqs": 200}, r"max_num_batched_tokens \(100\) must be greater than"),
        ({"num_blocks": 64}, "hold 1008; decrease max_model_len to 1008 or increase num_blocks"),
        ({"policy": "lifo"}, "policy is 'lifo'; use one of fcfs, priority"),
        ({"batching": "none"}, "use one of continuous, static"),
        ({"preemption": "kill"}, "use one of recompute, swap"),
        ({"swap_blocks": -1}, "swap_blocks is -1"),
        ({"step_jitter": 1.0}, "step_jitter is 1.0"),
        ({"adapter_load_s": float("nan")}, "adapter_load_s is nan; it must be at least 0"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadEngineConfigError, match=words):
        _engine(**changes)


def test_a_request_beyond_the_context_length_is_refused_in_vllms_words() -> None:
    long = replace(REQUEST, prompt_tokens=1020, block_hashes=list(range(63)), tail=tuple(range(12)))
    with pytest.raises(RequestTooLongError) as caught:
        _engine().submit(long, 0.0)
    assert str(caught.value) == (
        "This model's maximum context length is 1024 tokens. However, you requested 5 output tokens and your prompt "
        "contains 1020 input tokens, for a total of 1025 tokens. Please reduce the length of the input prompt or the "
        "number of requested output tokens."
    )
    assert (caught.value.prompt_tokens, caught.value.output_tokens, caught.value.limit) == (1020, 5, 1024)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt_tokens": 0}, "prompt_tokens of request 'r' is 0"),
        ({"output_tokens": 0}, "output_tokens of request 'r' is 0"),
        ({"n": 0}, "n of request 'r' is 0"),
        ({"n": 300}, "n of request 'r' is 300; this engine runs max_num_seqs 256"),
        ({"adapter": "a"}, "names adapter 'a'; this engine has no adapter slots"),
        ({"block_hashes": []}, "of 20 tokens has 0 block hashes and a tail of 4; blocks are 16 tokens"),
        ({"tail": (1,)}, "has 1 block hashes and a tail of 1"),
    ],
)
def test_an_impossible_request_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequestError, match=words):
        _engine().submit(replace(REQUEST, **changes), 0.0)


def test_a_refused_request_leaves_nothing_behind() -> None:
    engine = _engine()
    with pytest.raises(BadRequestError):
        engine.submit(replace(REQUEST, n=0), 0.0)
    assert engine.next_event() is None
    engine.submit(REQUEST, 0.0)
    assert len(engine.run_until(10.0)) == 1


def test_a_request_id_can_be_used_again_only_after_the_first_has_ended() -> None:
    engine = _engine()
    engine.submit(REQUEST, 0.0)
    with pytest.raises(DuplicateRequestError, match="request id 'r' is already in the engine"):
        engine.submit(REQUEST, 0.0)
    engine.run_until(10.0)
    engine.submit(REQUEST, 10.0)


def test_a_request_that_fills_the_whole_pool_runs() -> None:
    engine = _engine()
    engine.submit(replace(REQUEST, prompt_tokens=1000, output_tokens=24, block_hashes=list(range(62)), tail=()), 0.0)
    (ended,) = engine.run_until(10.0)
    assert ended.output_tokens == 24


def test_an_unknown_abort_says_so() -> None:
    assert _engine().abort("nobody", 0.0) is False


def test_an_idle_engine_has_no_step_and_no_next_event() -> None:
    engine = _engine()
    assert engine.step(1.0) is None
    assert engine.next_event() is None
    assert engine.run_until(5.0) == []
