"""`POST /v1/memory` over HTTP."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from tonnage_core.memory.report import memory_report
from tonnage_core.memory.request import MemoryRequest
from tonnage_core.parallelism import Layout
from tonnage_planner.adapters.endpoints_static import StaticEndpoints
from tonnage_planner.app import Ports, build_app
from tonnage_planner.settings import PlannerSettings
from tonnage_runtime.catalogue import load_gpu, load_model
from tonnage_runtime.clock import SystemClock

LLAMA = "meta-llama/Llama-3.1-8B"
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


class Unused:
    """No endpoint is listed, so nothing is scraped."""

    async def text(self, url: str) -> str:
        raise AssertionError(url)

    async def addresses(self, url: str) -> Sequence[str]:
        raise AssertionError(url)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    settings = PlannerSettings(request_body_limit_bytes=20_000)
    app = build_app(settings, Ports(StaticEndpoints(()), Unused(), SystemClock(), CollectorRegistry()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as http:
        yield http


async def test_answers_with_the_document_of_the_shared_function(client: httpx.AsyncClient) -> None:
    question = {"model": LLAMA, "gpu": "H100-SXM-80GB", "engine": "vllm:0.19.0", "tp": 2, "max_model_len": 32768}
    answer = await client.post("/v1/memory", json=question)
    request = MemoryRequest(
        load_model(LLAMA),
        load_gpu("H100-SXM-80GB"),
        engine_version="0.19.0",
        layout=Layout(2),
        max_model_len=32768,
    )
    assert answer.status_code == 200
    document = answer.json()
    expected = memory_report(request, document["version"])
    assert document == expected
    assert document["fits"] is True


async def test_takes_a_config_that_is_in_no_catalogue(client: httpx.AsyncClient) -> None:
    document = (await client.post("/v1/memory", json={"model": "mine", "config": CONFIG, "gpu": "L40S"})).json()
    assert document["model"] == "mine"
    assert document["kv_bytes_per_token"] == 2 * 16 * 8 * 64 * 2


async def test_without_a_gpu_the_pool_is_unknown_not_zero(client: httpx.AsyncClient) -> None:
    document = (await client.post("/v1/memory", json={"model": LLAMA})).json()
    assert (document["kv_cache_gib"], document["fits"]) == (None, None)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({}, "body.model: Field required"),
        ({"model": LLAMA, "gpus": "x"}, "body.gpus: Extra inputs are not permitted"),
        ({"model": "/etc"}, "no model '/etc' in the catalogue"),
        ({"model": LLAMA, "gpu": "GeForce 256"}, "GeForce 256"),
        ({"model": LLAMA, "gpu": "L40S", "gpu_profile": {}}, "both given"),
        ({"model": LLAMA, "tp": 3}, "3"),
        ({"model": LLAMA, "gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
        ({"model": LLAMA, "engine": "llamafile:1"}, "llamafile"),
        ({"model": "x", "config": {"model_type": "unheard-of"}}, "x has no num_hidden_layers"),
    ],
)
async def test_a_wrong_question_is_400_with_one_line(
    client: httpx.AsyncClient, question: dict[str, Any], message: str
) -> None:
    answer = await client.post("/v1/memory", json=question)
    assert answer.status_code == 400
    text = answer.json()["error"]["message"]
    assert message in text
    assert "\n" not in text


async def test_a_body_over_the_limit_is_413(client: httpx.AsyncClient) -> None:
    declared = await client.post("/v1/memory", content=b"x" * 20_001)
    assert declared.status_code == 413

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b"x" * 1000

    streamed = await client.post("/v1/memory", content=pieces())
    assert streamed.status_code == 413


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/memory", '{"model": ' + "[" * 9_000, 400),
        ("GET", "/v1/memory", "", 405),
        ("GET", "/v1/nothing", "", 404),
    ],
)
async def test_what_the_framework_refuses_has_the_shape_of_every_error(
    client: httpx.AsyncClient, method: str, path: str, body: str, status: int
) -> None:
    answer = await client.request(method, path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert set(answer.json()) == {"error"} and answer.json()["error"]["message"]
