"""What the router refuses by itself: malformed framing, paths outside the list, bodies that cannot be routed."""

import asyncio
import io
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.integration.router.tenant_files import key, write
from tonnage_router.access_log import AccessLog
from tonnage_router.settings import EndpointSpec

PATH = b"/v1/chat/completions"
START = b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\n"
SMUGGLING = {
    "both lengths": START + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": START + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    "two equal lengths": START + b"Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd",
    "signed length": START + b"Content-Length: +4\r\n\r\nabcd",
    "hex length": START + b"Content-Length: 0x4\r\n\r\nabcd",
    "length list": START + b"Content-Length: 4, 4\r\n\r\nabcd",
    "empty length": START + b"Content-Length:\r\n\r\n",
    "gzip then chunked": START + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked then identity": START + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "misspelt chunked": START + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two transfer encodings": START + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "space before colon": START + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "folded header": START + b"X: a\r\n b\r\n\r\n",
    "bare newline": START + b"X: a\nContent-Length: 0\r\n\r\n",
    "nul in a value": START + b"X: a\x00b\r\n\r\n",
    "chunk size with 0x": START + b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
    "chunk without end": START + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    "two hosts": START + b"Host: s\r\nContent-Length: 0\r\n\r\n",
    "no host": b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "chunked in 1.0": b"POST /v1/chat/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "version 2.0": b"POST /v1/chat/completions HTTP/2.0\r\nHost: r\r\n\r\n",
    "version 0.9": b"GET /v1/models\r\n\r\n",
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
}


@pytest.mark.parametrize("name", SMUGGLING)
async def test_a_smuggling_input_is_400_and_reaches_no_engine(name: str, engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    client = await router.client()
    client.writer.write(SMUGGLING[name])
    answer = await client.read()
    assert answer.status == 400
    assert orjson.loads(answer.body)["error"]["type"] == "invalid_request_error"
    assert await client.reader.read() == b""
    assert engine.calls == []


@pytest.mark.parametrize(
    "target",
    [
        b"/v1/load_lora_adapter",
        b"/v1/unload_lora_adapter",
        b"/reset_prefix_cache",
        b"/sleep",
        b"/wake_up",
        b"/metrics",
        b"/server_info",
        b"/v1/chat/completions/",
        b"/v1/chat/completions/../../sleep",
        b"/V1/chat/completions",
        b"//v1/chat/completions",
        b"/v1/chat%2fcompletions",
        b"http://r/v1/chat/completions",
        b"/",
    ],
)
async def test_a_path_outside_the_list_is_404_and_reaches_no_engine(target: bytes, engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    answer = await router.post(b'{"model":"m"}', target)
    assert answer.status == 404
    assert engine.calls == []


async def test_a_wrong_method_is_405(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    client = await router.client()
    client.writer.write(b"GET /v1/completions HTTP/1.1\r\nHost: r\r\n\r\n")
    assert (await client.read()).status == 405
    assert (await router.post(b"{}", b"/v1/models")).status == 405


async def test_an_answer_to_head_has_no_body_and_the_connection_lives_on(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    client = await router.client()
    client.writer.write(b"HEAD /v1/models HTTP/1.1\r\nHost: r\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: r\r\n\r\n")
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405 ")
    assert b"\r\nallow: GET\r\n" in head
    assert (await client.read()).status == 200


@pytest.mark.parametrize(
    "start",
    [
        START + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}",
        b"CONNECT engine:443 HTTP/1.1\r\nHost: r\r\n\r\n",
    ],
)
async def test_an_upgrade_is_answered_once(start: bytes, engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    client = await router.client()
    client.writer.write(start)
    answer = await client.read()
    assert answer.status == 400
    assert "upgrades are not supported" in orjson.loads(answer.body)["error"]["message"]
    assert await client.reader.read() == b""
    assert engine.calls == []


async def test_a_model_that_is_no_unicode_is_404(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    client = await router.client()
    answer = await client.post(b'{"model":"\\ud800%b"}' % (b"x" * 9000))
    assert answer.status == 404 and len(answer.body) < 1000
    assert orjson.loads(answer.body)["error"]["code"] == "model_not_found"
    assert (await client.post(b'{"model":"m"}')).status == 200


BAD_BODIES = {
    "malformed": b'{"model":',
    "empty": b"",
    "array": b"[]",
    "number": b"1",
    "not utf-8": b'{"model":"\xff"}',
    "model not a string": b'{"model":1}',
    "stream not a boolean": b'{"model":"m","stream":"yes"}',
    "too deep": b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "utf-16": '{"model":"m"}'.encode("utf-16"),
    "utf-16 without a mark": '{"model":"m"}'.encode("utf-16-le"),
    "utf-32": '{"model":"m"}'.encode("utf-32"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
async def test_a_body_that_cannot_be_routed_is_400_in_openai_form(name: str, engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    client = await router.client()
    answer = await client.post(BAD_BODIES[name])
    assert answer.status == 400
    assert set(orjson.loads(answer.body)["error"]) == {"message", "type", "param", "code"}
    assert engine.calls == []
    assert (await client.post(b'{"model":"m"}')).status == 200  # the connection lives on


@pytest.mark.parametrize("part", [b'"tools":%b', b'"messages":[{"role":"user","content":[{"image":%b}]}]'])
async def test_a_body_too_deep_to_be_read_leaves_nothing_behind(part: bytes, engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    for deep in (b'{"a":' * 990 + b"1" + b"}" * 990, b'[{"a":' * 490 + b"1" + b"}]" * 490):
        answer = await router.post(b'{"model":"m",' + part % deep + b"}")
        assert answer.status == 200 or b"the body is nested too deeply" in answer.body  # compiled, the stack holds it
    assert router.gateway.buffered == 0


async def test_a_byte_order_mark_passes_where_the_model_is_rewritten(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine], endpoints=[EndpointSpec(url=engine.url, model="alias", served_model="m")])
    assert (await router.post(b'\xef\xbb\xbf {"model":"alias"}')).status == 200
    assert engine.calls[0].body == b'\xef\xbb\xbf {"model":"m"}'


async def test_a_body_without_a_model_goes_to_the_only_one(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    assert (await router.post(b"{}")).status == 200
    assert engine.calls[0].body == b"{}"


async def test_a_body_over_the_limit_is_413_before_it_is_sent(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine], body_bytes=1000)
    client = await router.client()
    client.writer.write(START + b"Content-Length: 1001\r\nExpect: 100-continue\r\n\r\n")
    assert (await client.read()).status == 413
    assert router.gateway.buffered == 0


async def test_a_chunked_body_over_the_limit_is_413(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine], body_bytes=1000)
    client = await router.client()
    client.writer.write(
        START + b"Transfer-Encoding: chunked\r\n\r\n" + b"3e8\r\n" + b"x" * 1000 + b"\r\n" + b"1\r\nx\r\n"
    )
    assert (await client.read()).status == 413
    assert router.gateway.buffered == 0


async def test_total_buffered_bytes_are_bounded(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine], buffered_bytes=1000)
    holder = await router.client()
    holder.writer.write(START + b"Content-Length: 900\r\n\r\n" + b"x" * 800)
    await router.until(lambda: router.gateway.buffered == 800)
    answer = await router.post(b'{"model":"m","x":"%b"}' % (b"x" * 500))
    assert (answer.status, answer.header(b"retry-after")) == (503, b"1")
    untold = await router.client()  # a chunked body has no length to be refused by
    untold.writer.write(START + b"Transfer-Encoding: chunked\r\n\r\n12c\r\n" + b"x" * 300 + b"\r\n")
    assert (await untold.read()).status == 503
    holder.close()
    await router.until(lambda: router.gateway.buffered == 0)
    assert (await router.post(b'{"model":"m","x":"%b"}' % (b"x" * 500))).status == 200


async def test_a_head_over_the_limit_is_431(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine], head_bytes=4096)
    client = await router.client()
    client.writer.write(START)
    for _ in range(10):
        client.writer.write(b"X-Long: %b\r\n" % (b"y" * 1000))
    assert (await client.read()).status == 431


async def test_a_compressed_request_is_415(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    assert (await router.post(b"\x1f\x8b", extra=b"Content-Encoding: gzip\r\n")).status == 415


async def test_a_client_that_stops_sending_is_408(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine], client_timeout_s=0.3)
    client = await router.client()
    client.writer.write(START + b"Content-Length: 10\r\n\r\nabc")
    assert (await client.read()).status == 408


async def test_a_head_that_trickles_is_408(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine], client_timeout_s=0.5)
    client = await router.client()
    client.writer.write(START)
    answered = asyncio.create_task(client.read())
    while not answered.done():
        client.writer.write(b"a")
        await asyncio.sleep(0.05)
    assert (await answered).status == 408


async def test_an_idle_connection_is_closed_without_a_word(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine], keep_alive_s=0.3)
    client = await router.client()
    assert await asyncio.wait_for(client.reader.read(), 5) == b""


async def test_a_client_that_stops_reading_is_dropped_and_its_engine_freed(engines: Any, route: Any) -> None:
    async def flood(call: Any) -> None:
        call.stream_head()
        try:
            while True:
                await call.chunk(b"x" * 65536)
        finally:
            call.engine.left += 1

    (engine,) = await engines(script=flood)
    router = await route([engine], client_timeout_s=0.5)
    client = await router.client()
    client.writer.transport.pause_reading()
    client.send(b'{"model":"m","stream":true}')
    await router.until(lambda: engine.left == 1)
    assert router.counters() == [(0, 0, 0)]
    assert router.gateway.clients == set()


async def test_a_client_that_reads_no_answer_is_not_read_on_and_then_dropped(engines: Any, route: Any) -> None:
    (engine,) = await engines(model="m" * 200)
    router = await route([engine], client_timeout_s=1.0)
    client = await router.client()
    client.writer.transport.pause_reading()
    asks = b"GET /v1/models HTTP/1.1\r\nHost: r\r\n\r\n" * 5000
    most = 0
    try:
        while router.gateway.clients:
            client.writer.write(asks)
            await asyncio.wait_for(client.writer.drain(), 0.05)
            most = max(most, *(c.transport.get_write_buffer_size() for c in router.gateway.clients), 0)
    except (TimeoutError, ConnectionError):
        await router.until(lambda: not router.gateway.clients)
    assert most < 1 << 20


async def test_models_are_merged_and_adapters_keep_their_parent(engines: Any, route: Any) -> None:
    made = await engines(2)
    made[0].listed = [{"id": "m", "object": "model"}, {"id": "lora-a", "object": "model", "parent": "m"}]
    made[1].listed = [{"id": "m", "object": "model"}, {"id": "lora:b", "object": "model", "parent": "m"}]
    router = await route(made)
    client = await router.client()
    client.writer.write(b"GET /v1/models HTTP/1.1\r\nHost: r\r\n\r\n")
    rows = orjson.loads((await client.read()).body)["data"]
    assert sorted((row["id"], row.get("parent")) for row in rows) == [("lora-a", "m"), ("lora:b", "m"), ("m", None)]
    for _ in range(5):
        assert (await router.post(b'{"model":"lora:b"}')).status == 200
    assert len(made[1].calls) == 5


@pytest.mark.parametrize("start", [b"0\r\nx: ", b"5;"], ids=["trailer", "chunk extension"])
async def test_a_trailer_or_chunk_extension_without_end_is_431(start: bytes, engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    client = await router.client()
    client.writer.write(START + b"Transfer-Encoding: chunked\r\n\r\n" + start)
    for _ in range(4):
        client.writer.write(b"a" * 100_000)
    assert (await client.read()).status == 431
    assert not engine.calls


async def test_an_absurd_answer_length_in_flight_disturbs_no_other_request(engines: Any, route: Any) -> None:
    begun, over = asyncio.Event(), asyncio.Event()

    async def script(call: Any) -> None:
        if b"max_tokens" not in call.body:
            call.answer()
            return
        call.stream_head()
        await call.chunk(b"data: {}\n\n")
        begun.set()
        await over.wait()
        call.end()

    router = await route(await engines(2, script))
    client = await router.client()
    client.send(b'{"model":"m","messages":[],"stream":true,"t":NaN,"max_tokens":1%b}' % (b"0" * 400))
    await begun.wait()
    await router.until(lambda: any(counts[2] for counts in router.counters()))
    try:
        assert (await router.post(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')).status == 200
    finally:
        over.set()
    assert (await client.read()).complete
    await router.settled()
    assert router.counters() == [(0, 0, 0)] * 2


@pytest.mark.parametrize("mode", ["errors", "all", "off"])
async def test_a_refusal_leaves_a_line_in_the_access_log(mode: str, engines: Any, route: Any, tmp_path: Path) -> None:
    written = io.BytesIO()
    router = await route(await engines(), tenants_file=write(tmp_path, a={}))
    router.gateway.access_log = AccessLog(mode, written)
    assert (await router.post(b"{", extra=b"x-request-id: one\r\n")).status == 401
    assert (await router.post(b"{", extra=b"x-request-id: two\r\n" + key("a"))).status == 400
    assert (await router.post(b"{}", b"/nope", key("a"))).status == 404
    router.gateway.access_log.flush()
    lines = [orjson.loads(line) for line in written.getvalue().splitlines()]
    found = [(line["status"], line["path"], line["request_id"], line["tenant"]) for line in lines]
    chat = PATH.decode()
    expected = [(401, chat, "one", None), (400, chat, "two", "a"), (404, "/nope", None, None)]
    assert found == ([] if mode == "off" else expected)
    assert mode == "off" or "Bearer <key>" in lines[0]["why"]
