"""Data-parallel ranks: one URL, several caches and queues."""

import asyncio
from typing import Any

import orjson


async def test_ranks_are_chosen_by_their_own_caches_and_named_to_the_engine(
    engines: Any, route: Any, publisher: Any
) -> None:
    (engine,) = await engines()
    spec = {"url": engine.url, "model": "m", "data_parallel_size": 2, "kv_events_port": publisher.bind(ranks=2)}
    router = await route([engine], endpoints=[spec])
    followers = [e.follower for e in router.gateway.fleet]
    await router.until(lambda: all(f.document()["live"] for f in followers))
    first, second = list(range(1000, 1640)), list(range(3000, 3640))
    publisher.stored(first, b"a", rank=0)
    publisher.stored(second, b"b", rank=1)
    await router.until(lambda: [f.document()["blocks"] for f in followers] == [40, 40])
    sent = []
    for prompt in (first, second, second, first):
        body = orjson.dumps({"model": "m", "prompt": [*prompt, 1]})
        answer = await router.post(body, b"/v1/completions", b"x-tonnage-explain: 1\r\n")
        assert answer.header(b"x-tonnage-hit-tokens") == b"640"
        head = engine.calls[-1].head.lower()
        sent += [line for line in head.split(b"\r\n") if line.startswith(b"x-data-parallel-rank")]
    assert sent == [b"x-data-parallel-rank: %d" % rank for rank in (0, 1, 1, 0)]
    assert [e.id.rpartition("-")[2] for e in router.gateway.fleet] == ["dp0", "dp1"]


async def test_a_rank_that_a_client_names_goes_to_engines_that_have_none_and_is_replaced_for_those_that_have(
    engines: Any, route: Any
) -> None:
    plain, ranked = await engines(2)
    ranked.model = "r"
    specs = [{"url": plain.url, "model": "m"}, {"url": ranked.url, "model": "r", "data_parallel_size": 1,
             "data_parallel_rank": 3}]  # fmt: skip
    router = await route([plain, ranked], endpoints=specs)
    for model, engine, rank in (("m", plain, b"7"), ("r", ranked, b"3")):
        body = orjson.dumps({"model": model, "prompt": "x"})
        await router.post(body, b"/v1/completions", b"X-Data-Parallel-Rank: 7\r\n")
        lines = [x for x in engine.calls[-1].head.lower().split(b"\r\n") if x.startswith(b"x-data-parallel-rank")]
        assert lines == [b"x-data-parallel-rank: " + rank]


async def test_an_adapter_is_loaded_once_for_all_ranks_of_an_engine(engines: Any, route: Any) -> None:
    async def slow(call: Any) -> None:
        if b"_lora_adapter" in call.head.split(b"\r\n")[0]:
            await asyncio.sleep(0.02)
        call.answer()

    (engine,) = await engines(script=slow)
    adapters = [{"name": "ad", "parent": "m", "path": "/ad"}]
    spec = {"url": engine.url, "model": "m", "data_parallel_size": 4}
    router = await route([engine], endpoints=[spec], adapters=adapters)
    bodies = [orjson.dumps({"model": "ad", "prompt": f"{n}" + "x" * 4000}) for n in range(12)]
    answers = await asyncio.gather(*(router.post(body, b"/v1/completions") for body in bodies))
    assert {answer.status for answer in answers} == {200}
    loads = [call for call in engine.calls if call.head.startswith(b"POST /v1/load_lora_adapter ")]
    assert len(loads) == 1
    ranks = {line for call in engine.calls for line in call.head.split(b"\r\n") if b"rank" in line}
    assert len(ranks) > 1


async def test_each_rank_has_its_own_gauges(engines: Any, route: Any) -> None:
    page = b"".join(
        b'vllm:num_requests_waiting{engine="%d",model_name="m"} %d\n'
        b'vllm:kv_cache_usage_perc{engine="%d",model_name="m"} 0.%d\n' % (rank, rank + 5, rank, rank + 1)
        for rank in range(2)
    )
    (engine,) = await engines(metrics=page)
    spec = {"url": engine.url, "model": "m", "data_parallel_size": 2}
    router = await route([engine], endpoints=[spec], metrics_interval_s=0.05)
    candidates = [e.candidate for e in router.gateway.fleet]
    await router.until(lambda: all(c.waiting is not None for c in candidates))
    assert [(c.waiting, c.kv_utilisation) for c in candidates] == [(5, 0.1), (6, 0.2)]
