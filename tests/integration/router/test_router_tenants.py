"""Tenants through the whole router: keys, models, usage, rates, isolation, their file."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.integration.router.tenant_files import key, write
from tonnage_core.errors import BadInputError
from tonnage_router.adapters.tenant_file import read_tenants

USAGE = {"prompt_tokens": 40, "completion_tokens": 2, "total_tokens": 42}


async def stream_with_usage(call: Any) -> None:
    call.stream_head()
    await call.chunk(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
    if b"include_usage" in call.body:
        await call.chunk(b'data: {"choices":[],"usage":%b}\n\n' % orjson.dumps(USAGE))
    await call.chunk(b"data: [DONE]\n\n")
    call.end()


STREAM = b'{"model":"m","stream":true,"messages":[]}'


async def test_a_key_is_needed_and_never_reaches_the_engine(engines: Any, route: Any, tmp_path: Path) -> None:
    (engine,) = await engines()
    router = await route([engine], tenants_file=write(tmp_path, a={}))
    assert (await router.post(STREAM)).status == 401
    assert (await router.post(STREAM, extra=key("nobody"))).status == 401
    assert (await router.post(STREAM, extra=b"Authorization: Basic eA==\r\n")).status == 401
    assert (await router.post(STREAM, extra=key("a"))).status == 200
    assert b"key-a" not in engine.calls[0].head
    client = await router.client()
    client.writer.write(b"GET /v1/models HTTP/1.1\r\nHost: r\r\n\r\n")
    assert (await client.read()).status == 401


async def test_a_key_may_come_as_anthropics_clients_send_it(engines: Any, route: Any, tmp_path: Path) -> None:
    (engine,) = await engines()
    router = await route([engine], tenants_file=write(tmp_path, "other", a={}, other={}))
    assert (await router.post(STREAM, b"/v1/messages", b"x-api-key: nobody\r\n")).status == 401
    assert (await router.post(STREAM, b"/v1/messages", b"x-api-key: key-a\r\n")).status == 200
    assert (await router.post(STREAM, b"/v1/messages", b"x-api-key: nobody\r\n" + key("a"))).status == 200
    assert all(b"x-api-key" not in call.head and b"key-a" not in call.head for call in engine.calls)
    assert router.gateway.tenants.accounts["a"].taken_requests == 2


async def test_a_request_that_generates_nothing_reserves_its_prompt_alone(
    engines: Any, route: Any, tmp_path: Path
) -> None:
    router = await route(await engines(), tenants_file=write(tmp_path, a={"concurrent_tokens": 100}))
    assert (await router.post(b'{"model":"m","input":"x"}', b"/v1/embeddings", key("a"))).status == 200
    refused = await router.post(b'{"model":"m","prompt":["x","y"],"max_tokens":60}', b"/v1/completions", key("a"))
    assert orjson.loads(refused.body)["error"]["code"] == "request_too_large"


async def test_a_default_tenant_serves_requests_without_a_key(engines: Any, route: Any, tmp_path: Path) -> None:
    router = await route(await engines(), tenants_file=write(tmp_path, "a", a={}))
    assert (await router.post(STREAM)).status == 200


async def test_a_model_outside_the_tenants_list_is_403(engines: Any, route: Any, tmp_path: Path) -> None:
    router = await route(await engines(), tenants_file=write(tmp_path, a={"models": ["lora-*"]}))
    assert (await router.post(STREAM, extra=key("a"))).status == 403


async def test_usage_is_asked_for_read_and_taken_out_again(engines: Any, route: Any, tmp_path: Path) -> None:
    (engine,) = await engines(script=stream_with_usage)
    router = await route([engine], tenants_file=write(tmp_path, a={"tokens_per_min": 100_000}))
    answer = await router.post(STREAM, extra=key("a") + b"Accept-Encoding: gzip\r\n")
    assert engine.calls[0].body == b'{"stream_options":{"include_usage":true},' + STREAM[1:]
    assert b"accept-encoding" not in engine.calls[0].head.lower()
    assert b"usage" not in answer.body and answer.body.endswith(b"data: [DONE]\n\n") and answer.complete
    account = router.gateway.tenants.accounts["a"]
    await router.settled()
    assert (account.used_tokens, account.held_tokens) == (42, 0)


async def test_usage_the_client_asked_for_stays(engines: Any, route: Any, tmp_path: Path) -> None:
    (engine,) = await engines(script=stream_with_usage)
    router = await route([engine], tenants_file=write(tmp_path, a={"tokens_per_min": 100_000}))
    body = b'{"model":"m","stream":true,"stream_options":{"include_usage":true}}'
    answer = await router.post(body, extra=key("a"))
    assert engine.calls[0].body == body
    assert b'"usage"' in answer.body


async def test_over_the_rate_is_429_with_a_true_retry_after(engines: Any, route: Any, tmp_path: Path) -> None:
    router = await route(await engines(), tenants_file=write(tmp_path, a={"requests_per_s": 1}))
    assert (await router.post(STREAM, extra=key("a"))).status == 200
    answer = await router.post(STREAM, extra=key("a"))
    assert (answer.status, answer.header(b"retry-after")) == (429, b"1")
    assert orjson.loads(answer.body)["error"]["code"] == "rate_limit_exceeded"


async def test_isolated_tenants_never_share_prefixes(engines: Any, route: Any, tmp_path: Path) -> None:
    made = await engines(3)
    file = write(tmp_path, a={"prefix_isolation": True}, b={"prefix_isolation": True})
    router = await route(made, tenants_file=file)
    body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 900}]})
    explain = b"x-tonnage-explain: 1\r\n"
    hits = []
    for name in ("a", "a", "b", "b"):
        answer = await router.post(body, extra=key(name) + explain)
        hits.append(int(answer.header(b"x-tonnage-hit-tokens") or b""))
    assert hits[0] == hits[2] == 0 and hits[1] == hits[3] > 500
    salts = {orjson.loads(call.body)["cache_salt"] for engine in made for call in engine.calls}
    assert salts == {"a", "b"}


async def test_an_alias_is_rewritten_upstream(engines: Any, route: Any) -> None:
    (engine,) = await engines(model="org/real-name")
    spec = {"url": engine.url, "model": "alias", "served_model": "org/real-name"}
    router = await route([engine], endpoints=[spec])
    assert (await router.post(b'{"x":1, "model" : "alias"}')).status == 200
    assert engine.calls[0].body == b'{"x":1, "model" : "org/real-name"}'
    assert (await router.post(b'{"model":"org/real-name"}')).status == 404
    client = await router.client()
    client.writer.write(b"GET /v1/models HTTP/1.1\r\nHost: r\r\n\r\n")
    assert [row["id"] for row in orjson.loads((await client.read()).body)["data"]] == ["alias"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "a mapping with"),
        ("tenants: [{name: a, key_sha256: plain-key}]", "key_sha256"),
        ("tenants: []\ndefault_tenant: x", "default_tenant x is not among"),
        ("tenants: [{name: a, key_sha256: []}, {name: a, key_sha256: []}]", "a is listed twice"),
        (
            f"tenants: [{{name: a, key_sha256: '{'0' * 64}'}}, {{name: b, key_sha256: ['{'0' * 64}']}}]",
            "a and b have the same key",
        ),
        (f"tenants: [{{name: a, weight: 0, key_sha256: '{'0' * 64}'}}]", r"tenants\.0\.weight.*0\.001"),
        (f"tenants: [{{name: a, weight: 5000, key_sha256: '{'0' * 64}'}}]", r"tenants\.0\.weight.*1000"),
    ],
)
def test_a_wrong_tenant_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(text)
    with pytest.raises(BadInputError, match=message):
        read_tenants(file)


async def test_events_cut_between_pieces_are_charged_once(engines: Any, route: Any, tmp_path: Path) -> None:
    """The engine dies before it tells its usage: the prompt and the events that passed are charged."""

    async def cut(call: Any) -> None:
        call.stream_head()
        await call.chunk(b'data: {"choices":[{"delta":{"content":"x"}}]}\n')
        await asyncio.sleep(0.1)  # it is read before the rest comes
        await call.chunk(b'\ndata: {"choices":[{"delta":{"content":"y"}}]}\n\n')
        call.writer.transport.abort()

    charged = {}
    for name, script in (("cut", cut), ("whole", whole_events)):
        router = await route(await engines(script=script), tenants_file=write(tmp_path, a={"tokens_per_min": 1e9}))
        client = await router.client()
        client.send(STREAM, extra=key("a"))
        await router.until(lambda router=router: bool(router.gateway.metrics.tenant_tokens))
        charged[name] = dict(router.gateway.metrics.tenant_tokens)
    assert charged["cut"] == charged["whole"] != {}


async def whole_events(call: Any) -> None:
    call.stream_head()
    for word in (b"x", b"y"):
        await call.chunk(b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % word)
    call.writer.transport.abort()
