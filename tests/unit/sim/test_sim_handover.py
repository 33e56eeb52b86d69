"""Disaggregated prefill and decode by vLLM's two calls, over simulated engines."""

from typing import Any

import pytest

from .conftest import Sim, Start

PROMPT = list(range(1000, 1100))
ASK = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}


async def prefilled(sim: Sim, **body: Any) -> Any:
    return (await sim.complete(PROMPT, **{"max_tokens": 1, "kv_transfer_params": ASK, **body}))["kv_transfer_params"]


async def test_a_prefill_engine_says_where_the_kv_is(start: Start) -> None:
    sim = await start(role="prefill")
    params = await prefilled(sim)
    assert params["do_remote_prefill"] is True and params["do_remote_decode"] is False
    assert len(params["remote_block_ids"]) == 7 and params["remote_num_tokens"] == 100
    assert {"remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size"} <= set(params)
    assert (await sim.complete(PROMPT, max_tokens=1))["kv_transfer_params"] is None


@pytest.mark.parametrize("role", ["none", "decode"])
async def test_an_engine_that_cannot_send_kv_says_nothing(start: Start, role: str) -> None:
    assert await prefilled(await start(role=role)) is None


async def test_an_answer_that_was_not_cut_by_its_length_gives_no_kv(start: Start) -> None:
    sim = await start(role="prefill", output_tokens_median=1, output_tokens_sigma=0)
    assert await prefilled(sim, ignore_eos=False, max_tokens=50) is None


async def test_a_decode_engine_computes_only_what_did_not_come(start: Start) -> None:
    prefill, decode = await start(role="prefill"), await start(role="decode")
    params = await prefilled(prefill)
    answer = await decode.complete(PROMPT, kv_transfer_params=params)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    assert answer["choices"] == (await prefill.complete(PROMPT))["choices"]
    assert decode.app.service.handover.imported_tokens == 96
    await decode.complete(PROMPT, kv_transfer_params=params)
    assert decode.app.service.handover.imported_tokens == 96


async def test_chat_streams_take_part_too(start: Start) -> None:
    prefill, decode = await start(role="prefill"), await start(role="decode")
    text = "word " * 200
    first = await prefill.chat(text, max_tokens=1, kv_transfer_params=ASK, ignore_eos=True)
    body = {"messages": [{"role": "user", "content": text}], "stream_options": {"include_usage": True}}
    events = await decode.events("/v1/chat/completions", **body, kv_transfer_params=first["kv_transfer_params"])
    assert events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] >= 192


async def test_a_transfer_takes_latency_and_bytes_over_the_link(start: Start) -> None:
    sim = await start(role="decode", kv_link_gbps=2.0, kv_link_latency_ms=5)
    per_token = 2 * 28 * 8 * 128 * 2  # keys and values, layers, heads, head size, bytes
    assert sim.app.service.handover.transfer_s(1000) == pytest.approx(0.005 + 1000 * per_token / 2e9)


async def test_params_that_say_nothing_usable_are_refused(start: Start) -> None:
    sim = await start(role="decode")
    body = {"prompt": PROMPT, "kv_transfer_params": {"do_remote_prefill": True}}
    answer = await sim.http.post("/v1/completions", json=body)
    assert answer.status_code == 400 and "remote_block_ids" in answer.text
