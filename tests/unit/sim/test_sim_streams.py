"""Streams, event by event, against those of vLLM."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from .conftest import Sim, Start

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "vllm_0.32_streams.json").read_text())
MASKS = (
    (r'"id":"[^"]*"', '"id":"ID"'),
    (r'"created":\d+', '"created":0'),
    (r'"(text|content)":"[^"]*"', r'"\1":"T"'),
    (r"vllm-0.32.0-\w+", "FINGERPRINT"),
    (r'"(prompt_tokens|total_tokens)":\d+', r'"\1":N'),
    (r'token_ids":\[[^\]]*\]', 'token_ids":[]'),
)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=[case["name"] for case in GOLDEN["cases"]])
async def test_a_stream_has_vllms_events(start: Start, case: dict[str, Any]) -> None:
    sim = await start(served_model_name="tiny", block_size=32)
    answer = await sim.http.post(case["path"], json=case["body"])
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    masked = answer.text
    for pattern, mask in MASKS:
        masked = re.sub(pattern, mask, masked)
    assert masked.split("\n\n")[:-1] == case["events"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_streams_text_is_the_whole_answers(sim: Sim, path: str) -> None:
    body = {"prompt": " babab"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": " babab"}]}
    asked = {**body, "max_tokens": 30, "ignore_eos": True, "n": 2}
    whole = await sim.post(path, **asked)
    texts = ["", ""]
    for event in await sim.events(path, **asked):
        for choice in event["choices"]:
            texts[choice["index"]] += choice.get("text", choice.get("delta", {}).get("content"))
    assert texts == [c.get("text", c.get("message", {}).get("content")) for c in whole["choices"]]


async def test_a_stop_string_never_shows_in_a_stream(sim: Sim) -> None:
    whole = (await sim.complete("q", max_tokens=20))["choices"][0]["text"]
    stop = whole[33:36]
    events = await sim.events("/v1/completions", prompt="q", ignore_eos=True, max_tokens=20, stop=stop)
    assert "".join(event["choices"][0]["text"] for event in events) == whole[: whole.index(stop)]
    assert events[-1]["choices"][0]["stop_reason"] == stop


async def test_usage_tells_the_tokens_found_in_the_cache(sim: Sim) -> None:
    prompt = list(range(1000, 1100))
    await sim.complete(prompt)
    asked = {"prompt": prompt, "max_tokens": 2, "stream_options": {"include_usage": True}}
    events = await sim.events("/v1/completions", **asked)
    assert events[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 96}


async def test_a_reader_of_http_1_0_gets_plain_events(sim: Sim) -> None:
    import asyncio

    host, port = sim.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"prompt": "a", "max_tokens": 2, "ignore_eos": True, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert b"transfer-encoding" not in answer
    assert answer.partition(b"\r\n\r\n")[2].startswith(b"data: {")
    assert answer.endswith(b"data: [DONE]\n\n")
