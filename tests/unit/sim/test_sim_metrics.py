"""/metrics against a scrape of vLLM, and what it counts."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from .conftest import Sim, Start, until

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "vllm_0.32_metrics.json").read_text())
PROMPT = list(range(1000, 1100))


def described(exposition: str) -> dict[str, dict[str, Any]]:
    """Type, labels, label values and buckets of each family as it names itself."""
    types = dict(line.split()[2:4] for line in exposition.splitlines() if line.startswith("# TYPE"))
    found: dict[str, dict[str, Any]] = {
        name: {"type": kind, "labels": set(), "buckets": [], "values": defaultdict(list)}
        for name, kind in types.items()
    }
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            name = next(n for n in (sample.name, family.name) if n in found)
            for label, value in sample.labels.items():
                if label == "le":
                    if value not in found[name]["buckets"]:
                        found[name]["buckets"].append(value)
                else:
                    found[name]["labels"].add(label)
                    found[name]["values"][label].append(value)
    return found


async def test_families_types_labels_and_buckets_are_vllms(start: Start) -> None:
    sim = await start(served_model_name="tiny", block_size=32, max_loras=2, lora_modules={"lora-a": "a"})
    await sim.complete(PROMPT, model="lora-a")
    found = described((await sim.http.get("/metrics")).text)
    assert sorted(found) == sorted(GOLDEN["families"])
    for name, golden in GOLDEN["families"].items():
        seen = found[name]
        assert seen["type"] == golden["type"], name
        assert sorted(seen["labels"]) == golden["labels"], name
        assert seen["buckets"] == golden.get("buckets", []), name
        for label, values in golden.get("values", {}).items():
            assert sorted(set(seen["values"][label])) == sorted(values), name


async def test_an_engine_without_adapters_tells_nothing_of_them(sim: Sim) -> None:
    assert "vllm:lora_requests_info" not in (await sim.http.get("/metrics")).text


async def test_tokens_are_counted_by_where_they_came_from(sim: Sim) -> None:
    for _ in range(2):
        await sim.complete(PROMPT, max_tokens=5)
    assert await sim.metric("vllm:prompt_tokens_total") == 200
    assert await sim.metric("vllm:prefix_cache_queries_total") == 200
    assert await sim.metric("vllm:prefix_cache_hits_total") == 96
    assert await sim.metric("vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 96
    assert await sim.metric("vllm:prompt_tokens_by_source_total", source="local_compute") == 104
    assert await sim.metric("vllm:generation_tokens_total") == 10
    assert await sim.metric("vllm:request_success_total", finished_reason="length") == 2
    assert await sim.metric("vllm:inter_token_latency_seconds_count") == 8


async def test_n_samples_are_n_requests_of_one_parent(sim: Sim) -> None:
    await sim.complete(PROMPT, n=3, max_tokens=5)
    assert await sim.metric("vllm:prompt_tokens_total") == 300
    assert await sim.metric("vllm:prefix_cache_hits_total") == 192
    assert await sim.metric("vllm:request_success_total", finished_reason="length") == 3
    assert await sim.metric("vllm:request_params_n_count") == 1
    assert await sim.metric("vllm:request_params_n_sum") == 3
    assert await sim.metric("vllm:request_max_num_generation_tokens_count") == 1
    assert await sim.metric("vllm:time_to_first_token_seconds_count") == 3


async def test_an_abort_is_no_finished_request(start: Start) -> None:
    sim = await start(time_scale=1.0)
    body = {"prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True, "stream": True}
    async with sim.http.stream("POST", "/v1/completions", json=body) as answer:
        await anext(answer.aiter_lines())
        assert await sim.metric("vllm:num_requests_running") == 1
    await until(lambda: not sim.app.service.loop.busy)
    assert await sim.metric("vllm:num_requests_running") == 0
    assert await sim.metric("vllm:kv_cache_usage_perc") == 0
    for reason in ("stop", "length", "abort", "error"):
        assert await sim.metric("vllm:request_success_total", finished_reason=reason) == 0


async def test_a_step_counts_prompt_and_generated_tokens_together(sim: Sim) -> None:
    await sim.complete(PROMPT, max_tokens=5)
    assert await sim.metric("vllm:iteration_tokens_total_count") == 5
    assert await sim.metric("vllm:iteration_tokens_total_sum") == 105


async def test_times_are_engine_time(start: Start) -> None:
    slow, quick = await start(time_scale=200.0), await start(time_scale=4000.0)
    for sim in (slow, quick):
        await sim.complete(PROMPT, max_tokens=50)
    gaps = [await sim.metric("vllm:request_decode_time_seconds_sum") for sim in (slow, quick)]
    assert abs(gaps[0] - gaps[1]) < 1e-9


async def test_http_requests_are_counted_by_handler(sim: Sim) -> None:
    await sim.complete(PROMPT)
    await sim.http.get("/nowhere")
    await sim.http.get("/health")
    assert await sim.metric("http_requests_total", handler="/v1/completions", method="POST", status="2xx") == 1
    assert await sim.metric("http_requests_total", handler="none", method="GET", status="4xx") == 1
    assert 'handler="/health"' not in (await sim.http.get("/metrics")).text


async def test_the_cache_configuration_stands_in_its_labels(start: Start) -> None:
    sim = await start(block_size=32, num_blocks=500)
    assert await sim.metric("vllm:cache_config_info", block_size="32", num_gpu_blocks="500") == 1
