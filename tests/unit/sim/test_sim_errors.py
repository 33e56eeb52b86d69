"""Refusals, word for word as vLLM's."""

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Start

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "vllm_0.32_errors.json").read_text())


def body_of(case: dict[str, Any]) -> bytes | None:
    if "body" not in case:
        return None
    text: str = case["body"]
    if "repeat" in case:
        tokens = [case["repeat"]["token"]] * case["repeat"]["times"]
        text = text.replace('"@tokens"', json.dumps(tokens))
    if "repeat_text" in case:
        text = text.replace("@text", "a" * case["repeat_text"])
    return text.encode("latin-1")


@pytest.mark.parametrize("adapters", [True, False])
async def test_every_refusal_is_vllms(start: Start, adapters: bool) -> None:
    loras = {"max_loras": 2, "lora_modules": {"lora-a": "/adapters/a"}} if adapters else {}
    sim = await start(served_model_name="tiny", block_size=32, dev_mode=True, **loras)
    different = []
    for case in GOLDEN["cases"]:
        if case.get("adapters", True) is not adapters:
            continue
        headers = {"content-type": case["content_type"]} if case.get("content_type") else {}
        answer = await sim.http.request(case["method"], case["path"], content=body_of(case), headers=headers)
        if (answer.status_code, answer.json()) != (case["status"], case["answer"]):
            different.append((case["name"], answer.status_code, answer.json(), case["answer"]))
    assert different == []


async def test_the_golden_table_is_not_empty() -> None:
    assert len(GOLDEN["cases"]) >= 150


async def test_a_prompt_of_too_many_characters_is_refused_before_it_is_encoded(start: Start) -> None:
    sim = await start()
    answer = await sim.http.post("/v1/completions", json={"prompt": "a" * 24577})
    assert answer.status_code == 400
    assert "your prompt contains 24577 characters (more than 24576 characters" in answer.json()["error"]["message"]


async def test_an_adapter_without_files_is_refused_when_paths_are_checked(start: Start) -> None:
    sim = await start(max_loras=1, check_lora_paths=True)
    answer = await sim.http.post("/v1/load_lora_adapter", json={"lora_name": "new", "lora_path": "/nonexistent"})
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "Loading lora new failed: No adapter found for /nonexistent"


async def test_sleep_is_served_in_development_mode_only(start: Start) -> None:
    sim = await start()
    assert (await sim.http.get("/is_sleeping")).status_code == 404
    assert (await sim.http.post("/reset_prefix_cache")).status_code == 404


@pytest.mark.parametrize("target", ["/v1/models/", "/health/"])
async def test_a_slash_too_many_is_redirected(start: Start, target: str) -> None:
    sim = await start()
    answer = await sim.http.get(target)
    assert (answer.status_code, answer.headers["location"]) == (307, sim.url + target[:-1])
