"""Prefill and decode apart: two calls where it pays, one where not, and no client error either way."""

import asyncio
import time
from typing import Any

import orjson
import pytest

from tonnage_router import disaggregation
from tonnage_router.body import prefill as prefill_bodies

BODY = (
    b'{"model":"m", "stream":false,\t"max_tokens":7,"messages":[{"role":"user","content":"' + b"word " * 8000 + b'"}]}'
)
PARAMS = b'{"do_remote_prefill":true, "remote_block_ids":[1,2],"big":12345678901234567890123}'
FIRST = b'{"id":"p","choices":[],"kv_transfer_params":' + PARAMS + b"}"


async def give_kv(call: Any) -> None:
    call.answer(FIRST)


async def start(route: Any, prefill: Any, decode: Any, busy: int = 50, **settings: Any) -> Any:
    """A router over one prefill and one decode endpoint, the latter with `busy` requests that generate."""
    listed = [
        {"url": prefill.url, "model": "m", "role": "prefill"},
        {"url": decode.url, "model": "m", "role": "decode"},
    ]
    moved = [{"model": "m", "kv_bytes_per_token": 131072}]
    router = await route([], endpoints=listed, disaggregation=moved, **settings)
    for endpoint in router.gateway.fleet:
        endpoint.candidate.decoding = busy if endpoint.spec.role == "decode" else 0
    return router


async def test_the_prompt_is_computed_on_the_prefill_endpoint_and_its_kv_named_to_the_decode_endpoint(
    engines: Any, route: Any
) -> None:
    (prefill,), (decode,) = await engines(1, script=give_kv), await engines(1)
    router = await start(route, prefill, decode)
    answer = await router.post(BODY, extra=b"x-tonnage-explain: 1\r\nAccept-Encoding: gzip\r\n")
    assert answer.status == 200
    assert answer.header(b"x-tonnage-endpoint") == f"127.0.0.1:{decode.port}".encode()
    (first,), (second,) = prefill.calls, decode.calls
    asked = orjson.loads(first.body)
    assert (asked["max_tokens"], asked["stream"]) == (1, False)
    assert asked["kv_transfer_params"]["do_remote_decode"] is True
    assert b"accept-encoding" not in first.head.lower()
    assert second.body == b'{"kv_transfer_params":' + PARAMS + b"," + BODY[1:]
    await router.settled()
    assert router.counters() == [(0, 0, 0), (0, 0, 0)]
    assert router.gateway.metrics.handovers == {"pays": 1, "done": 1}
    assert router.gateway.decisions[-1].document()["disaggregation"].startswith("pays: ")


async def test_an_idle_decode_endpoint_computes_its_prompt_itself(engines: Any, route: Any) -> None:
    (prefill,), (decode,) = await engines(1, script=give_kv), await engines(1)
    router = await start(route, prefill, decode, busy=0)
    assert (await router.post(BODY)).status == 200
    assert prefill.calls == [] and decode.calls[0].body == BODY
    assert router.gateway.metrics.handovers == {"does_not_pay": 1}


async def shared(engines: Any, route: Any, script: Any = give_kv) -> tuple[Any, Any, Any]:
    """A router over one endpoint that does both and a busy decode endpoint, with the model's prompts worth moving."""
    (both,), (decode,) = await engines(1, script=script), await engines(1)
    listed = [
        {"url": both.url, "model": "m", "role": "both"},
        {"url": decode.url, "model": "m", "role": "decode"},
    ]
    router = await route([], endpoints=listed, disaggregation=[{"model": "m", "kv_bytes_per_token": 131072}])
    by_id = router.gateway.fleet.by_id
    by_id[f"127.0.0.1:{both.port}"].candidate.decode_tokens = 1_000_000  # so that the first request goes elsewhere
    by_id[f"127.0.0.1:{decode.port}"].candidate.decoding = 50
    return router, both, decode


async def test_an_endpoint_that_does_both_computes_prompts_for_decode_endpoints_and_then_nothing_else(
    engines: Any, route: Any
) -> None:
    router, both, decode = await shared(engines, route)
    assert (await router.post(BODY)).status == 200
    router.gateway.fleet.by_id[f"127.0.0.1:{both.port}"].candidate.decode_tokens = 0
    for _ in range(2):
        router.gateway.scheduler.index.clear_slot(1)
        assert (await router.post(BODY)).status == 200
    assert [orjson.loads(call.body)["max_tokens"] for call in both.calls] == [1, 1, 1]
    assert len(decode.calls) == 3
    decode.stop()
    assert (await router.post(BODY)).status == 200, "whole, since no decode endpoint is left"
    assert both.calls[-1].body == BODY


async def test_an_endpoint_without_a_kv_connector_is_not_asked_again_at_once(engines: Any, route: Any) -> None:
    router, both, decode = await shared(engines, route, know_nothing_of_kv)
    for _ in range(2):
        router.gateway.scheduler.index.clear_slot(1)
        assert (await router.post(BODY)).status == 200
    assert len(both.calls) == 1 and [call.body for call in decode.calls] == [BODY, BODY]
    assert router.gateway.metrics.handovers == {"pays": 1, "no_params": 1, "no_endpoint": 1}
    router.gateway.fleet.by_id[f"127.0.0.1:{both.port}"].candidate.decode_tokens = 0
    router.gateway.scheduler.index.clear_slot(1)
    assert (await router.post(BODY)).status == 200
    assert both.calls[-1].body == BODY, "it computes no prompts for others, so it serves whole requests"


async def test_prompts_that_cannot_be_taken_apart_keep_no_endpoint_from_whole_requests(
    engines: Any, route: Any
) -> None:
    router, both, decode = await shared(engines, route)
    several = BODY[:-1] + b',"n":3}'
    assert (await router.post(several)).status == 200
    by_id = router.gateway.fleet.by_id
    by_id[f"127.0.0.1:{both.port}"].candidate.decode_tokens = 0
    by_id[f"127.0.0.1:{decode.port}"].candidate.decode_tokens = 1_000_000
    router.gateway.scheduler.index.clear_slot(1)
    assert (await router.post(several)).status == 200
    assert [call.body for call in decode.calls] == [several] == [call.body for call in both.calls]


async def refuse(call: Any) -> None:
    call.answer(b"{}", "503 Service Unavailable")


async def object_to_it(call: Any) -> None:
    call.answer(b'{"error":{}}', "400 Bad Request")


async def know_nothing_of_kv(call: Any) -> None:
    call.answer()


async def answer_no_json(call: Any) -> None:
    call.answer(b'{"\\x":1}')


async def answer_no_text(call: Any) -> None:
    call.answer(b'{"\\u0041\xff":1,"kv_transfer_params":{"a":1}}')


async def answer_no_http(call: Any) -> None:
    call.writer.write(b"\x00\xff nonsense\r\n\r\n")


async def say_nothing(call: Any) -> None:
    await call.reader.read(1)


async def cut(call: Any) -> None:
    call.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{")
    await call.writer.drain()
    call.writer.close()


@pytest.mark.parametrize(
    ("script", "outcome", "blamed"),
    [
        (refuse, "failed", True),
        (object_to_it, "refused", False),
        (know_nothing_of_kv, "no_params", False),
        (answer_no_json, "no_params", False),
        (answer_no_text, "no_params", False),
        (answer_no_http, "failed", True),
        (say_nothing, "failed", True),
        (cut, "failed", True),
        (None, "failed", True),
    ],
)
async def test_whatever_the_prefill_endpoint_does_the_client_gets_its_answer(
    engines: Any, route: Any, script: Any, outcome: str, blamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is say_nothing:
        monkeypatch.setattr(disaggregation, "SLACK_S", 0.2)
        monkeypatch.setattr(disaggregation, "PATIENCE", 0.0)
    (prefill,), (decode,) = await engines(1, script=script or give_kv), await engines(1)
    router = await start(route, prefill, decode)
    if script is None:
        prefill.stop()
    assert (await router.post(BODY)).status == 200
    assert decode.calls[0].body == BODY
    await router.settled()
    assert router.counters() == [(0, 0, 0), (0, 0, 0)]
    assert router.gateway.metrics.handovers == {"pays": 1, outcome: 1}
    assert bool(router.gateway.metrics.endpoint_failures) is blamed


@pytest.mark.parametrize("script", [know_nothing_of_kv, answer_no_json, object_to_it])
async def test_an_answer_without_kv_is_an_answer_and_closes_the_breaker(engines: Any, route: Any, script: Any) -> None:
    (prefill,), (decode,) = await engines(1, script=script), await engines(1)
    router = await start(route, prefill, decode)
    endpoint = half_open(router, prefill)
    assert (await router.post(BODY)).status == 200
    assert len(prefill.calls) == 1 and endpoint.breaker.closed and endpoint.candidate.healthy


def half_open(router: Any, engine: Any) -> Any:
    """The engine's endpoint, after faults that are long enough ago for one request to go there."""
    endpoint = router.gateway.fleet.by_id[f"127.0.0.1:{engine.port}"]
    for _ in range(endpoint.breaker.faults):
        endpoint.breaker.fault(time.monotonic() - 4000.0)
    endpoint.breaker._current_wait_s = 3000.0  # nor does the probe lose its place within the test
    router.gateway.refresh(endpoint)
    assert endpoint.candidate.healthy
    return endpoint


@pytest.mark.parametrize("good", [True, False])
async def test_a_half_open_prefill_endpoint_gets_one_first_call_until_that_has_ended(
    engines: Any, route: Any, good: bool
) -> None:
    go = asyncio.Event()

    async def wait(call: Any) -> None:
        await go.wait()
        await (give_kv(call) if good else cut(call))

    (prefill,), (decode,) = await engines(1, script=wait), await engines(1)
    router = await start(route, prefill, decode)
    endpoint, clients = half_open(router, prefill), [await router.client() for _ in range(3)]
    for client in clients:
        client.send(BODY)
    await router.until(lambda: len(prefill.calls) == 1 and len(decode.calls) == 2)
    assert router.gateway.metrics.handovers == {"pays": 1, "no_endpoint": 2}
    go.set()
    assert [(await client.read()).status for client in clients] == [200] * 3
    assert (endpoint.breaker.closed, endpoint.candidate.healthy) == (good, good)
    router.gateway.scheduler.index.clear_slot(1)
    assert (await router.post(BODY)).status == 200
    assert len(prefill.calls) == 1 + good


async def test_a_half_open_prefill_endpoints_place_is_free_again_when_the_client_leaves(
    engines: Any, route: Any
) -> None:
    (prefill,), (decode,) = await engines(1, script=say_nothing), await engines(1)
    router = await start(route, prefill, decode)
    endpoint, client = half_open(router, prefill), await router.client()
    client.send(BODY)
    await router.until(lambda: len(prefill.calls) == 1)
    assert not endpoint.candidate.healthy
    client.close()
    await router.until(lambda: endpoint.candidate.healthy)
    assert not endpoint.breaker.closed, "nothing is known of it yet"


async def test_a_first_call_that_ends_before_it_has_begun_gives_its_place_back(engines: Any, route: Any) -> None:
    (prefill,), (decode,) = await engines(1, script=give_kv), await engines(1)
    router = await start(route, prefill, decode)
    endpoint, apart = half_open(router, prefill), router.gateway.disaggregation
    holds = apart.holds

    def and_leaves(exchange: Any, chosen: Any) -> bool:
        found = holds(exchange, chosen)
        exchange.client_gone()
        return bool(found)

    apart.holds = and_leaves
    (await router.client()).send(BODY)
    await router.until(lambda: router.gateway.metrics.outcomes == {"client_gone": 1})
    await router.until(lambda: endpoint.candidate.healthy)
    assert prefill.calls == [] == decode.calls


async def test_faults_of_first_calls_count_in_a_row_only(engines: Any, route: Any) -> None:
    (prefill,), (decode,) = await engines(1, script=give_kv), await engines(1)
    router = await start(route, prefill, decode)
    breaker = router.gateway.fleet.by_id[f"127.0.0.1:{prefill.port}"].breaker
    for _ in range(4):
        breaker.fault(time.monotonic())
    assert (await router.post(BODY)).status == 200
    assert len(prefill.calls) == 1 and not breaker.troubled


async def test_a_fault_of_the_routers_own_in_the_first_call_costs_no_request(
    engines: Any, route: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(prefill_bodies, "for_prefill", broken)
    (prefill,), (decode,) = await engines(1, script=give_kv), await engines(1)
    router = await start(route, prefill, decode)
    assert (await router.post(BODY)).status == 200
    assert prefill.calls == [] and decode.calls[0].body == BODY
    await router.settled()
    assert router.counters() == [(0, 0, 0), (0, 0, 0)]
    assert any(record.exc_info and record.exc_info[0] is ZeroDivisionError for record in caplog.records)


async def test_a_client_that_leaves_stops_the_first_call(engines: Any, route: Any) -> None:
    gone = asyncio.Event()

    async def hang(call: Any) -> None:
        await call.reader.read(1)
        gone.set()

    (prefill,), (decode,) = await engines(1, script=hang), await engines(1)
    router = await start(route, prefill, decode)
    client = await router.client()
    client.send(BODY)
    await router.until(lambda: len(prefill.calls) == 1)
    assert router.counters()[1][1] == 1, "the prompt is not the decode endpoint's work"
    client.close()
    await asyncio.wait_for(gone.wait(), 30)
    await router.settled()
    await router.until(lambda: router.counters() == [(0, 0, 0), (0, 0, 0)])
    assert decode.calls == []


async def test_a_batch_and_a_model_without_a_link_are_not_taken_apart(engines: Any, route: Any) -> None:
    (prefill,), (decode,) = await engines(1, script=give_kv), await engines(1)
    router = await start(route, prefill, decode)
    batch = b'{"model":"m","prompt":["' + b"word " * 8000 + b'","b"]}'
    assert (await router.post(batch, b"/v1/completions")).status == 200
    assert prefill.calls == [] and router.gateway.metrics.handovers == {"unsuitable": 1}
    plain = await start(route, prefill, decode)
    plain.gateway.disaggregation = None
    assert (await plain.post(BODY)).status == 200
    assert prefill.calls == []


async def test_several_samples_of_a_prompt_are_not_taken_apart(engines: Any, route: Any) -> None:
    (prefill,), (decode,) = await engines(1, script=give_kv), await engines(1)
    router = await start(route, prefill, decode)
    body = BODY[:-1] + b',"n":3}'
    assert (await router.post(body)).status == 200
    assert prefill.calls == [] and decode.calls[0].body == body
    assert router.gateway.metrics.handovers == {"unsuitable": 1}


async def test_the_endpoint_that_computed_the_prompt_is_credited_with_it(engines: Any, route: Any) -> None:
    (prefill,), (decode,) = await engines(1, script=give_kv), await engines(1)
    router = await start(route, prefill, decode)
    blocks = router.gateway.scheduler.index.blocks
    computed = router.gateway.fleet.by_id[f"127.0.0.1:{prefill.port}"].candidate.slot
    assert blocks(computed) == 0
    assert (await router.post(BODY)).status == 200
    assert len(prefill.calls) == 1 and blocks(computed) > 0


ADAPTERS = [{"name": "lora-1", "parent": "m", "path": "/adapters/1"}]
ADAPTER_BODY = BODY.replace(b'"model":"m"', b'"model":"lora-1"')


def is_load(call: Any) -> bool:
    return bool(call.head.startswith(b"POST /v1/load_lora_adapter "))


async def load_then_give_kv(call: Any) -> None:
    await (answer_load(call) if is_load(call) else give_kv(call))


async def answer_load(call: Any) -> None:
    call.answer(b"loaded")


async def refuse_to_load(call: Any) -> None:
    call.answer(b"no such directory", "404 Not Found")


async def test_an_adapters_prompt_is_computed_apart_once_the_prefill_endpoint_has_loaded_it(
    engines: Any, route: Any
) -> None:
    (prefill,), (decode,) = await engines(1, script=load_then_give_kv), await engines(1)
    router = await start(route, prefill, decode, adapters=ADAPTERS)
    for _ in range(2):
        router.gateway.scheduler.index.clear_slot(1)
        assert (await router.post(ADAPTER_BODY)).status == 200
        await router.settled()
    assert [is_load(call) for call in prefill.calls] == [True, False, False]
    assert orjson.loads(prefill.calls[1].body)["model"] == "lora-1"
    assert decode.calls[1].body == b'{"kv_transfer_params":' + PARAMS + b"," + ADAPTER_BODY[1:]
    assert router.gateway.metrics.handovers == {"pays": 2, "done": 2}
    assert router.counters() == [(0, 0, 0), (0, 0, 0)]


async def test_an_adapter_that_the_prefill_endpoint_cannot_load_is_left_to_the_decode_endpoint(
    engines: Any, route: Any
) -> None:
    (prefill,), (decode,) = await engines(1, script=refuse_to_load), await engines(1)
    router = await start(route, prefill, decode, adapters=ADAPTERS)
    assert (await router.post(ADAPTER_BODY)).status == 200
    assert [is_load(call) for call in prefill.calls] == [True]
    assert decode.calls[-1].body == ADAPTER_BODY
    await router.settled()
    assert router.gateway.metrics.handovers == {"pays": 1, "no_adapter": 1}
    assert router.counters() == [(0, 0, 0), (0, 0, 0)]
