"""Bytes pass unchanged, both ways, whatever they are and however they are cut."""

import asyncio
import gzip
import itertools
from typing import Any

import pytest

CHAT = b"/v1/chat/completions"
BODIES = {
    "duplicate keys": b'{"model":"x","model":"m","a":1,"a":2}',
    "escapes": b'{"model":"\\u006d","messages":[{"role":"user","content":"\\u00e9\\ud83d\\ude00 \\/"}]}',
    "25-digit integer": b'{"model":"m","seed":1234567890123456789012345}',
    "lone surrogate": b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
    "spaces and order": b'{ "z" : 1.0 ,\n\t"model":"m", "b":1e2 }  ',
    "unknown fields": b'{"model":"m","return_token_ids":true,"chat_template_kwargs":{"x":null},"cache_salt":"s"}',
    "NaN": b'{"model":"m","temperature":NaN}',
    "raw unicode": '{"model":"m","messages":[{"role":"user","content":"\u00e9\u4e2d\U0001f600"}]}'.encode(),
    "null content": b'{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}]}',
    "stream null": b'{"model":"m","stream":null}',
    "audio part": b'{"model":"m","messages":[{"content":[{"type":"input_audio","input_audio":{"data":"AA"}}]}]}',
    "text part null": b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":null}]}]}',
    "empty messages": b'{"model":"m","messages":[]}',
}
PATHS = (
    b"/v1/embeddings /v1/responses /v1/messages /v1/messages/count_tokens /tokenize /detokenize "
    b"/v1/rerank /v2/rerank /rerank /v1/score /score /classify /pooling"
)
COMPLETIONS = {  # none as a library would write it
    "text": b'{"prompt": "h\\u0065llo","model":"m"}',
    "ids": b'{"model":"m","prompt":[1, 2,3]}',
    "batch of text": b'{"model":"m","prompt":["a" ,"b"]}',
    "batch of ids": b'{"model":"m","prompt":[[1,2],[3]] }',
    "odd ids": b'{"model":"m","prompt":[-1,99999999999,2.50]}',
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_chat_body_reaches_the_engine_byte_for_byte(name: str, engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    answer = await router.post(BODIES[name])
    assert answer.status == 200, answer.body
    assert engine.calls[0].body == BODIES[name]


@pytest.mark.parametrize("name", COMPLETIONS)
async def test_every_prompt_shape_reaches_the_engine(name: str, engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    answer = await router.post(COMPLETIONS[name], b"/v1/completions")
    assert answer.status == 200
    assert engine.calls[0].body == COMPLETIONS[name]


@pytest.mark.parametrize("path", PATHS.split())
async def test_every_inference_path_passes(path: bytes, engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    body = b'{"model":"m","input":["a"],"query":"q","documents":["d"],"messages":[{"role":"user","content":"x"}]}'
    assert (await router.post(body, path + b"?x=1")).status == 200
    assert engine.calls[0].head.startswith(b"POST " + path + b"?x=1 HTTP/1.1\r\n")
    assert engine.calls[0].body == body


async def test_a_40_mib_body_passes_unchanged(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    body = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"0123456789abcdef" * (40 << 16))
    assert (await router.post(body)).status == 200
    assert engine.calls[0].body == body
    assert router.gateway.buffered == 0


async def test_a_chunked_upload_cut_anywhere_arrives_whole(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    body = BODIES["raw unicode"]
    client = await router.client()
    client.writer.write(b"POST %b HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n" % CHAT)
    for start in range(0, len(body), 7):
        piece = body[start : start + 7]
        for part in (b"%x\r" % len(piece), b"\n" + piece[:3], piece[3:] + b"\r\n"):
            client.writer.write(part)
            await client.writer.drain()
            await asyncio.sleep(0)
    client.writer.write(b"0\r\nX-Trailer: dropped\r\n\r\n")
    assert (await client.read()).status == 200
    assert engine.calls[0].body == body
    assert b"railer" not in engine.calls[0].head


async def test_a_chunked_upload_in_tiny_pieces_takes_little_more_than_its_bytes(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    client = await router.client()
    body = b'{"model":"m","user":"' + b"ab" * 100_000 + b'"}'
    pieces = [body[at : at + 2] for at in range(0, len(body), 2)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    client.writer.write(b"POST %b HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n" % CHAT + chunks)
    await router.until(lambda: router.gateway.buffered > 200_000)
    (held,) = [connection._incoming for connection in router.gateway.clients]
    assert len(held.parts) < 2000
    client.writer.write(b"0\r\n\r\n")
    assert (await client.read()).status == 200
    assert engine.calls[0].body == body


async def test_expect_100_continue_is_answered_here_and_not_passed_on(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    client = await router.client()
    for _ in range(2):  # of a head that comes again too
        client.writer.write(b"POST %b HTTP/1.1\r\nHost: r\r\nExpect: 100-continue\r\nContent-Length: 13\r\n\r\n" % CHAT)
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(b'{"model":"m"}')
        assert (await client.read()).status == 200
    assert b"expect" not in engine.calls[0].head.lower()


async def test_end_to_end_headers_pass_and_hop_by_hop_ones_do_not(engines: Any, route: Any) -> None:
    async def script(call: Any) -> None:
        call.answer(
            extra=b"Retry-After: 7\r\nX-Custom: a\r\nX-Custom: b\r\nKeep-Alive: timeout=5\r\n"
            b"Connection: X-Gone\r\nX-Gone: 1\r\nConnection: keep-alive\r\n"
        )

    (engine,) = await engines(script=script)
    router = await route([engine])
    extra = b"Authorization: Bearer k\r\nX-Tenant: t\r\ntraceparent: 00-ab-cd-01\r\n"
    extra += b"TE: trailers\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n"
    answer = await router.post(b'{"model":"m"}', extra=extra)
    head = engine.calls[0].head
    for kept in (b"Authorization: Bearer k\r\n", b"X-Tenant: t\r\n", b"traceparent: 00-ab-cd-01\r\n"):
        assert kept in head
    assert b"x-hop" not in head.lower() and b"\nte:" not in head.lower()
    assert f"host: 127.0.0.1:{engine.port}\r\n".encode() in head
    assert [v for k, v in answer.headers if k == b"X-Custom"] == [b"a", b"b"]
    assert answer.header(b"retry-after") == b"7"
    assert answer.header(b"keep-alive") is None and answer.header(b"x-gone") is None


async def test_bytes_pass_the_same_whether_or_not_a_connections_head_came_before(engines: Any, route: Any) -> None:
    async def echo(call: Any) -> None:
        call.answer(call.body * 2)

    (engine,) = await engines(script=echo)
    router = await route([engine])
    client = await router.client()
    asked = [*BODIES.values(), *reversed(BODIES.values())]
    for number, body in enumerate(asked):
        extra = b"X-Turn: %d\r\n" % (number // 9)
        again, alone = await client.post(body, extra=extra), await router.post(body, extra=extra)
        assert again.raw == alone.raw and again.body == 2 * body
        first, second = engine.calls[-2:]
        assert first.head == second.head and first.body == second.body == body
    assert router.gateway.buffered == 0


async def test_a_compressed_answer_keeps_its_bytes_and_its_encoding(engines: Any, route: Any) -> None:
    packed = gzip.compress(b'{"ok":true}' * 50)

    async def script(call: Any) -> None:
        call.answer(packed, extra=b"Content-Encoding: gzip\r\n")

    (engine,) = await engines(script=script)
    router = await route([engine])
    answer = await router.post(b'{"model":"m"}', extra=b"Accept-Encoding: gzip\r\n")
    assert (answer.body, answer.header(b"content-encoding")) == (packed, b"gzip")


EVENTS = 'data: {"choices":[{"delta":{"content":"\u00e9\u4e2d\U0001f600"}}]}\n\n'.encode() * 3 + b"data: [DONE]\n\n"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17, 1000])
async def test_a_stream_cut_anywhere_arrives_byte_for_byte(size: int, engines: Any, route: Any) -> None:
    async def script(call: Any) -> None:
        call.stream_head()
        for start in range(0, len(EVENTS), size):
            await call.chunk(EVENTS[start : start + size])
        call.end()

    (engine,) = await engines(script=script)
    router = await route([engine])
    answer = await router.post(b'{"model":"m","stream":true}')
    assert answer.body == EVENTS
    assert answer.complete


async def test_raw_network_cuts_inside_chunk_framing_do_not_matter(engines: Any, route: Any) -> None:
    async def script(call: Any) -> None:
        raw = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        raw += b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (EVENTS[:50], EVENTS[50:])) + b"0\r\n\r\n"
        for start in range(0, len(raw), 3):
            call.writer.write(raw[start : start + 3])
            await call.writer.drain()
            await asyncio.sleep(0)

    (engine,) = await engines(script=script)
    router = await route([engine])
    assert (await router.post(b'{"model":"m","stream":true}')).body == EVENTS


async def test_each_piece_of_a_stream_is_passed_on_at_once(engines: Any, route: Any) -> None:
    steps = [asyncio.Event() for _ in range(3)]

    async def script(call: Any) -> None:
        call.stream_head()
        for number, step in enumerate(steps):
            await call.chunk(b"data: %d\n\n" % number)
            await step.wait()
        call.end()

    (engine,) = await engines(script=script)
    router = await route([engine])
    client = await router.client()
    client.send(b'{"model":"m","stream":true}')
    seen = b""
    for number, step in enumerate(steps):
        while b"data: %d\n\n" % number not in seen:
            seen += await client.reader.read(1000)
        assert b"data: %d" % (number + 1) not in seen
        step.set()


async def test_an_answer_without_framing_ends_with_its_connection(engines: Any, route: Any) -> None:
    async def script(call: Any) -> None:
        call.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nhello ")
        await call.writer.drain()
        call.writer.write(b"world")
        call.writer.write_eof()

    (engine,) = await engines(script=script)
    router = await route([engine])
    answer = await router.post(b'{"model":"m"}')
    assert (answer.body, answer.complete, answer.header(b"transfer-encoding")) == (b"hello world", True, b"chunked")


async def test_pipelined_requests_are_answered_in_order(engines: Any, route: Any) -> None:
    async def script(call: Any) -> None:
        await asyncio.sleep(0.01 if b"slow" in call.body else 0)
        call.answer(call.body)

    made = await engines(2, script=script)
    router = await route(made)
    client = await router.client()
    bodies = [b'{"model":"m","user":"%d %b"}' % (n, b"slow" if n % 2 == 0 else b"") for n in range(20)]
    for body in bodies:
        client.send(body)
    raw = b""
    while raw.count(b"HTTP/1.1 200") < 20 or not raw.endswith(bodies[-1]):
        raw += await client.reader.read(65536)
    assert [raw.find(body) for body in bodies] == sorted(raw.find(body) for body in bodies)


async def test_requests_pipelined_by_the_thousand_are_all_answered(engines: Any, route: Any) -> None:
    async def script(call: Any) -> None:
        await router.until(lambda: any(len(client._queue) > 1500 for client in router.gateway.clients))
        call.answer()

    (engine,) = await engines(script=script)
    router = await route([engine])
    client = await router.client()
    client.send(b'{"model":"m"}')
    client.writer.write(b"GET /v1/models HTTP/1.1\r\nHost: r\r\n\r\n" * 4000)
    got = 0
    while got < 4001:
        got += (await client.reader.readuntil(b"\r\n\r\n")).count(b"HTTP/1.1 200 OK")
    assert router.gateway.buffered == 0


async def test_an_invitation_to_send_stands_in_no_other_answer(engines: Any, route: Any) -> None:
    async def script(call: Any) -> None:
        if call.engine.calls[1:]:
            call.answer()
            return
        call.stream_head()
        await call.chunk(b"data: 1\n\n")
        await router.until(lambda: any(client._incoming is not None for client in router.gateway.clients))
        await call.chunk(b"data: 2\n\n")
        call.end()

    (engine,) = await engines(script=script)
    router = await route([engine])
    client = await router.client()
    client.send(b'{"model":"m","stream":true}')
    client.writer.write(b"POST %b HTTP/1.1\r\nHost: r\r\nExpect: 100-continue\r\nContent-Length: 13\r\n\r\n" % CHAT)
    first = await client.reader.readuntil(b"\r\n0\r\n\r\n")
    assert b"100" not in first and first.count(b"data: ") == 2
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.writer.write(b'{"model":"m"}')
    assert (await client.read()).status == 200


async def test_an_http_10_client_gets_a_body_it_can_read(engines: Any, route: Any) -> None:
    async def script(call: Any) -> None:
        call.stream_head()
        await call.chunk(b"data: x\n\n")
        call.end()

    (engine,) = await engines(script=script)
    router = await route([engine])
    client = await router.client()
    client.writer.write(b'POST %b HTTP/1.0\r\nContent-Length: 13\r\n\r\n{"model":"m"}' % CHAT)
    raw = await client.reader.read(-1)
    assert raw.endswith(b"\r\n\r\ndata: x\n\n")
    assert b"chunked" not in raw


async def test_connections_are_kept_alive_on_both_sides(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    client = await router.client()
    for _ in range(5):
        assert (await client.post(b'{"model":"m"}')).status == 200
    assert len({id(call.writer) for call in engine.calls}) == 1
    assert list(itertools.chain(*router.counters())) == [0, 0, 0]
