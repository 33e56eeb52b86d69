"""What clients see when engines fail, and what engines see when clients leave."""

import asyncio
import contextlib
import socket
from typing import Any

import orjson
import pytest

CHAT = b'{"model":"m","messages":[]}'
STREAM = b'{"model":"m","stream":true}'
ZERO = (0, 0, 0)


async def hang(call: Any) -> None:
    if not await call.reader.read(1):
        call.engine.left += 1


async def die(call: Any) -> None:
    call.writer.transport.abort()


def status(code: str, extra: bytes = b"") -> Any:
    async def script(call: Any) -> None:
        call.answer(b'{"error":{"message":"no"}}', code, extra)

    return script


async def test_a_dying_engine_is_replaced_before_the_first_byte(engines: Any, route: Any) -> None:
    (bad,) = await engines(script=die)
    (good,) = await engines()
    router = await route([bad, good])
    answers = [await router.post(CHAT) for _ in range(12)]
    assert {a.status for a in answers} == {200}
    assert bad.calls
    assert router.counters() == [ZERO, ZERO]


@pytest.mark.parametrize("code", ["500 Internal Server Error", "502 Bad Gateway", "503 Service Unavailable"])
async def test_a_5xx_is_tried_elsewhere(code: str, engines: Any, route: Any) -> None:
    (bad,) = await engines(script=status(code))
    (good,) = await engines()
    router = await route([bad, good])
    assert {(await router.post(CHAT)).status for _ in range(10)} == {200}
    assert 1 <= len(bad.calls) <= 10


@pytest.mark.parametrize(("count", "calls"), [(1, [12]), (3, [5, 5, 5])])
async def test_requests_that_every_engine_fails_take_no_engine_from_others(
    count: int, calls: list[int], engines: Any, route: Any
) -> None:
    async def script(call: Any) -> None:
        call.answer(b"{}", "500 Internal Server Error" if b"poison" in call.body else "200 OK")

    made = await engines(count, script=script)
    router = await route(made)
    for _ in range(calls[0]):
        assert (await router.post(b'{"model":"m","user":"poison"}')).status == 500
    assert [len(engine.calls) for engine in made] == calls
    assert all(endpoint.candidate.healthy for endpoint in router.gateway.fleet)
    assert (await router.post(b'{"model":"m"}')).status == 200


async def test_a_head_without_a_body_byte_does_not_stop_the_retry(engines: Any, route: Any) -> None:
    async def head_then_die(call: Any) -> None:
        call.stream_head()
        await call.writer.drain()
        await asyncio.sleep(0.02)
        call.writer.transport.abort()

    (bad,) = await engines(script=head_then_die)
    (good,) = await engines()
    router = await route([bad, good])
    assert {(await router.post(STREAM)).status for _ in range(6)} == {200}
    assert bad.calls


async def test_a_4xx_is_passed_on_once_and_is_no_fault(engines: Any, route: Any) -> None:
    made = await engines(2, script=status("400 Bad Request"))
    router = await route(made)
    for _ in range(20):
        assert (await router.post(CHAT)).status == 400
    assert sum(len(e.calls) for e in made) == 20
    assert all(e.candidate.healthy for e in router.gateway.fleet)


async def test_back_pressure_everywhere_is_passed_on_with_its_retry_after(engines: Any, route: Any) -> None:
    made = await engines(2, script=status("429 Too Many Requests", b"retry-after: 7\r\n"))
    router = await route(made)
    answer = await router.post(CHAT)
    assert (answer.status, answer.header(b"retry-after")) == (429, b"7")
    for _ in range(30):
        await router.post(CHAT)
    assert all(e.candidate.healthy for e in router.gateway.fleet)


async def test_all_endpoints_down_is_503_in_openai_form_and_heals(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine], retries=0)
    port = engine.port
    engine.stop()
    first, second = await router.post(CHAT), await router.post(CHAT)
    assert first.status == 502
    assert (second.status, second.header(b"retry-after")) == (503, b"2")
    error = orjson.loads(second.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    await engine.start(port)
    await router.until(lambda: all(e.candidate.healthy for e in router.gateway.fleet))
    assert (await router.post(CHAT)).status == 200


async def test_an_unknown_model_is_404_and_a_known_one_without_endpoint_503(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    assert (await router.post(b'{"model":"other"}')).status == 404
    router.gateway.fleet.remove(next(iter(router.gateway.fleet)))
    assert (await router.post(CHAT)).status == 503


async def test_a_router_that_has_just_started_answers_once_it_has_looked_at_its_engines(
    engines: Any, route: Any
) -> None:
    router = await route(await engines(3), ready=False)
    answers = await asyncio.gather(*(router.post(b'{"model":"m"}') for _ in range(8)))
    assert [answer.status for answer in answers] == [200] * 8


async def test_clients_that_come_while_the_router_stands_still_find_room(engines: Any, route: Any) -> None:
    """Nothing is awaited between the connections, so the router accepts none: the kernel must hold them all. What does
    not fit comes again after seconds, or is reset."""
    router = await route(await engines())
    await router.post(CHAT)  # it listens
    with contextlib.ExitStack() as stack:
        came = [
            stack.enter_context(socket.create_connection(("127.0.0.1", router.port), timeout=30)) for _ in range(400)
        ]
        for client in came:
            client.sendall(b"GET /v1/models HTTP/1.1\r\nhost: r\r\nconnection: close\r\n\r\n")
            client.setblocking(False)
        streams = [await asyncio.open_connection(sock=client) for client in came]
        answers = [await reader.read() for reader, _ in streams]
        assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
        for _, writer in streams:
            writer.close()


async def test_a_stale_connection_is_replaced_without_blame(engines: Any, route: Any) -> None:
    async def answer_then_close(call: Any) -> None:
        if len(call.engine.calls) % 2:
            call.answer()
        else:
            call.writer.transport.abort()  # the second request on a kept connection finds it dead

    (engine,) = await engines(script=answer_then_close)
    router = await route([engine])
    client = await router.client()
    for _ in range(6):
        assert (await client.post(CHAT)).status == 200
    assert next(iter(router.gateway.fleet)).failures == 0


@pytest.mark.parametrize(
    ("path", "start"),
    [
        (b"/v1/chat/completions", b"data: "),
        (b"/v1/messages", b"event: error\ndata: "),
        (b"/v1/responses", b"event: error\ndata: "),
    ],
)
async def test_an_engine_that_dies_in_a_stream_gives_an_error_event_and_no_done(
    path: bytes, start: bytes, engines: Any, route: Any
) -> None:
    async def cut(call: Any) -> None:
        call.stream_head()
        await call.chunk(b'data: {"choices":[]}\n\ndata: {"cho')
        await asyncio.sleep(0.02)
        call.writer.transport.abort()

    (engine,) = await engines(script=cut)
    router = await route([engine])
    answer = await router.post(STREAM, path)
    assert not answer.complete and answer.closed
    last = answer.body.rstrip().rsplit(b"\n\n", 1)[1]
    assert last.startswith(start)
    found = orjson.loads(last.removeprefix(start))
    assert found["error"]["code"] == "upstream_cut"
    assert found.get("type") == (None if start == b"data: " else "error")
    assert b"[DONE]" not in answer.body
    assert router.counters() == [ZERO]


async def test_an_engine_that_dies_in_a_json_answer_never_looks_whole(engines: Any, route: Any) -> None:
    async def cut(call: Any) -> None:
        call.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await call.writer.drain()
        await asyncio.sleep(0.02)
        call.writer.transport.abort()

    (engine,) = await engines(script=cut)
    router = await route([engine])
    client = await router.client()
    client.send(CHAT)
    with pytest.raises(ConnectionResetError):
        answer = await client.read()
        assert not answer.complete
        raise ConnectionResetError


async def test_an_engine_that_dies_never_looks_whole_to_a_client_that_reads_until_the_end(
    engines: Any, route: Any
) -> None:
    async def cut(call: Any) -> None:
        call.writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        await call.writer.drain()
        await asyncio.sleep(0.02)
        call.writer.transport.abort()

    (engine,) = await engines(script=cut)
    client = await (await route([engine])).client()
    client.writer.write(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(CHAT), CHAT))
    with pytest.raises(ConnectionResetError):  # such an answer has no other end than its connection's
        await client.reader.read(-1)


@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_a_client_that_leaves_while_waiting_frees_the_engine_at_once(
    body: bytes, engines: Any, route: Any
) -> None:
    (engine,) = await engines(script=hang)
    router = await route([engine])
    client = await router.client()
    client.send(body)
    await router.until(lambda: len(engine.calls) == 1)
    client.close()
    await router.until(lambda: engine.left == 1)
    await router.settled()
    assert router.counters() == [ZERO]


async def test_a_client_that_leaves_in_a_stream_frees_the_engine(engines: Any, route: Any) -> None:
    async def endless(call: Any) -> None:
        call.stream_head()
        try:
            while not call.writer.transport.is_closing():
                await call.chunk(b"data: x\n\n")
                await asyncio.sleep(0.005)
        finally:
            call.engine.left += 1

    (engine,) = await engines(script=endless)
    router = await route([engine])
    client = await router.client()
    client.send(STREAM)
    await client.reader.read(100)
    client.close()
    await router.until(lambda: engine.left == 1)
    await router.settled()
    assert router.counters() == [ZERO]


async def test_a_thousand_aborts_leave_every_counter_at_exactly_zero(engines: Any, route: Any) -> None:
    async def sometimes(call: Any) -> None:
        if len(call.engine.calls) % 3 == 0:
            await hang(call)
        call.stream_head()
        await call.chunk(b"data: x\n\n")
        await asyncio.sleep(0.01)
        call.end()

    made = await engines(2, script=sometimes)
    router = await route(made)

    async def one(number: int) -> None:
        client = await router.client()
        client.send(b'{"model":"m","stream":true,"prompt":"%d"}' % number, b"/v1/completions")
        if number % 2:
            await asyncio.sleep(0.001 * (number % 15))
        client.close()

    for batch in range(20):
        await asyncio.gather(*(one(50 * batch + n) for n in range(50)))
    await router.settled()
    assert router.counters() == [ZERO, ZERO]
    assert router.gateway.buffered == 0
    await router.until(lambda: not router.gateway.clients)


async def test_a_silent_engine_times_out_and_another_answers(engines: Any, route: Any) -> None:
    (bad,) = await engines(script=hang)
    (good,) = await engines()
    router = await route([bad, good], first_byte_timeout_s=0.3)
    answers = await asyncio.gather(*(router.post(CHAT) for _ in range(4)))
    assert {a.status for a in answers} == {200}
    assert bad.left >= 1


async def test_a_stream_that_falls_silent_is_cut_with_an_error(engines: Any, route: Any) -> None:
    async def stall(call: Any) -> None:
        call.stream_head()
        await call.chunk(b"data: x\n\n")
        await hang(call)

    (engine,) = await engines(script=stall)
    router = await route([engine], idle_timeout_s=0.3)
    answer = await router.post(STREAM)
    assert b"upstream_timeout" in answer.body and not answer.complete


async def test_an_engine_whose_probes_fail_gives_its_waiting_requests_to_others(engines: Any, route: Any) -> None:
    (bad,) = await engines(script=hang)
    (good,) = await engines()
    router = await route([bad, good], health_interval_s=0.2)
    waiting = [asyncio.create_task(router.post(CHAT)) for _ in range(6)]
    await router.until(lambda: bool(bad.calls))
    bad.healthy = False
    assert {(await task).status for task in waiting} == {200}


async def test_bytes_after_an_answer_cost_the_connection_not_the_next_client(engines: Any, route: Any) -> None:
    async def babble(call: Any) -> None:
        call.writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
        )

    (engine,) = await engines(script=babble)
    router = await route([engine], retries=0)
    for _ in range(3):
        answer = await router.post(CHAT)
        assert b"evil" not in answer.body


async def test_a_connection_that_the_engine_says_it_closes_is_not_used_again(engines: Any, route: Any) -> None:
    connections: list[Any] = []

    async def last(call: Any) -> None:
        connections.append(call.writer)
        call.writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")  # and leaves it open

    (engine,) = await engines(script=last)
    router = await route([engine])
    for _ in range(3):
        assert (await router.post(CHAT)).body == b"ok"
    assert len(set(connections)) == 3


async def test_retries_stop_at_the_budget(engines: Any, route: Any) -> None:
    made = await engines(3, script=status("500 Internal Server Error"))
    router = await route(made, retry_budget=0.0)
    for _ in range(30):
        await router.post(CHAT)
    assert sum(len(e.calls) for e in made) <= 30 + 10


async def test_drain_lets_streams_end_and_takes_nothing_new(engines: Any, route: Any) -> None:
    go = asyncio.Event()

    async def slow(call: Any) -> None:
        call.stream_head()
        await call.chunk(b"data: x\n\n")
        await go.wait()
        call.end()

    (engine,) = await engines(script=slow)
    router = await route([engine])
    client = await router.client()
    client.send(STREAM)
    await router.until(lambda: len(engine.calls) == 1)
    draining = asyncio.create_task(router.service.drain())
    await asyncio.sleep(0)
    with pytest.raises(ConnectionRefusedError):
        await router.client()
    assert not draining.done()
    go.set()
    answer = await client.read()
    assert answer.complete
    await draining
    assert await client.reader.read() == b""


async def test_a_name_that_leads_to_a_refused_address_is_sent_nothing(
    engines: Any, route: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name in an endpoint list may come to mean a metadata service; loopback stands for its address here."""
    (engine,) = await engines()
    router = await route([engine])
    assert (await router.post(CHAT)).status == 200
    sent = len(engine.calls)
    (endpoint,) = router.gateway.fleet
    for connection in list(endpoint.pool._idle):
        connection.transport.close()
    monkeypatch.setattr("tonnage_router.wire.peer.refused_address", lambda address: f"its address is {address}")
    assert (await router.post(CHAT)).status == 502
    await router.until(lambda: "its address is 127.0.0.1" in (endpoint.probe_problem or ""))
    assert len(engine.calls) == sent
