"""Any body is answered 2xx or 4xx: no JSON and no bytes break a simulated engine."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tonnage_runtime.catalogue import load_gpu, load_model
from tonnage_runtime.clock import SystemClock
from tonnage_sim.app import Ports, Simulator, build_app
from tonnage_sim.http1.exchange import Exchange
from tonnage_sim.http1.message import Request
from tonnage_sim.settings import SimSettings

PATHS = (
    *("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/detokenize"),
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
)
FIELDS = (
    *("model", "prompt", "messages", "input", "tokens", "max_tokens", "max_completion_tokens", "min_tokens", "n"),
    *("stop", "stop_token_ids", "stream", "stream_options", "echo", "logprobs", "top_logprobs", "prompt_logprobs"),
    *("temperature", "top_p", "top_k", "min_p", "seed", "priority", "cache_salt", "ignore_eos", "tools"),
    *("tool_choice", "response_format", "structured_outputs", "logit_bias", "truncate_prompt_tokens"),
    *("truncation_side", "allowed_token_ids", "bad_words", "return_token_ids", "request_id", "lora_name"),
    *("lora_path", "dimensions", "encoding_format", "add_generation_prompt", "continue_final_message"),
    *("presence_penalty", "repetition_penalty", "include_stop_str_in_output", "return_prompt_text", "suffix"),
)
scalars = st.none() | st.booleans() | st.integers(-3, 40) | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6) | st.sampled_from(FIELDS), inner, max_size=4)
    ),
    max_leaves=12,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool", "x"]) | values},
        optional={"content": st.text(max_size=8) | values, "tool_calls": values},
    ),
    max_size=3,
)
plausible = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 8)},
    optional={
        "prompt": st.text(max_size=9) | st.lists(st.integers(0, 70_000), max_size=40) | values,
        "messages": messages,
        "input": st.text(max_size=9) | values,
        "tokens": st.lists(st.integers(0, 70_000), max_size=5),
        "n": st.integers(1, 3),
        "stream": st.booleans(),
        "echo": st.booleans(),
        "logprobs": st.integers(0, 3) | st.booleans(),
        "stop": st.lists(st.text(max_size=3), max_size=4),
        "min_tokens": st.integers(0, 8),
        "truncate_prompt_tokens": st.integers(-2, 50),
        "prompt_logprobs": st.integers(-2, 3),
        "return_token_ids": st.booleans(),
    },
)
bodies = plausible | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=6), values, max_size=6) | values


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False


class Bench:
    """A simulator on a loop of its own, asked without a socket."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.app: Simulator = self.runner.run(self._start())

    async def _start(self) -> Simulator:
        chosen = SimSettings(
            model="Qwen/Qwen3-0.6B", time_scale=5000.0, num_blocks=300, max_model_len=256, max_loras=1, port=0
        )
        registry = CollectorRegistry()
        shape, gpu = load_model(chosen.model), load_gpu(chosen.gpu)
        app = build_app(chosen, Ports(SystemClock(), registry, shape, gpu, crash=lambda: None))
        self.context = app.running()
        await self.context.__aenter__()
        return app

    def ask(self, path: str, body: bytes) -> bytes:
        """The whole answer."""

        async def one() -> bytes:
            wire, done = Wire(), asyncio.Event()
            exchange = Exchange(wire, chunked=False, keep_alive=True, on_done=lambda _: done.set())
            request = Request("POST", path.encode(), {"content-type": "application/json"}, body, path)
            await self.app(request, exchange)
            await done.wait()
            return bytes(wire.written)

        return self.runner.run(one())

    def close(self) -> None:
        """Stop the engine."""

        async def leave() -> None:
            await self.context.__aexit__(None, None, None)

        self.runner.run(leave())
        self.runner.close()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def encoded(body: Any) -> bytes:
    """JSON as generous clients write it: lone surrogates, NaN and long integers included."""
    try:
        return orjson.dumps(body)
    except (orjson.JSONEncodeError, TypeError):
        return json.dumps(body).encode()


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PATHS), bodies)
def test_any_json_is_answered_or_refused(bench: Bench, path: str, body: Any) -> None:
    answer = bench.ask(path, encoded(body))
    assert 200 <= status(answer) < 500 or (path == "/v1/load_lora_adapter" and status(answer) == 404)
    assert not bench.app.service.loop.busy


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PATHS), st.binary(max_size=60))
def test_any_bytes_are_refused(bench: Bench, path: str, body: bytes) -> None:
    assert 400 <= status(bench.ask(path, body)) < 500


def test_deep_nesting_is_refused(bench: Bench) -> None:
    for deep in (b"[" * 100_000, b'{"prompt":' * 5000 + b"1" + b"}" * 5000):
        assert status(bench.ask("/v1/completions", deep)) == 400
