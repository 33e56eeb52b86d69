"""Each way a request can end has a name of its own."""

import asyncio
import socket

import pytest

from tests.unit.loadgen.conftest import (
    DONE,
    STREAM_HEAD,
    Answer,
    Call,
    chunked,
    fixed,
    request,
    scripted,
    token,
    usage,
    whole_stream,
)
from tonnage_loadgen import report
from tonnage_loadgen.errors import TargetError
from tonnage_loadgen.replay import ReplayOptions, ReplayResult, replay


async def replayed(answer: Answer, count: int = 1, *, timeout_s: float = 20.0, gap_s: float = 0.0) -> ReplayResult:
    async with scripted(answer) as server:
        options = ReplayOptions(server.url, timeout_s=timeout_s)
        return await replay(options, [request(n, at=n * gap_s) for n in range(count)])


async def outcome(answer: Answer) -> str:
    return (await replayed(answer, timeout_s=0.3)).records[0].outcome


async def good(call: Call) -> bytes:
    return chunked(whole_stream())


async def test_a_whole_stream_is_ok_and_counted_from_its_usage() -> None:
    async def answer(call: Call) -> bytes:
        return chunked(token() + token(), token(finish="length"), usage(602, 3, cached=512), DONE)

    record = (await replayed(answer)).records[0]
    assert record.ok
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (602, 3, 512)
    assert len(record.gaps_s) == 2


async def test_the_request_asks_for_a_stream_with_usage_of_exactly_the_output_length() -> None:
    async with scripted(good) as server:
        await replay(ReplayOptions(server.url, cache_salt="s"), [request(prompt=700, output=41)])
    asked = server.calls[0].json()
    prompt = asked.pop("prompt")
    assert isinstance(prompt, str)
    assert prompt.count(" ") == 700
    assert asked == {
        "model": "m",
        "max_tokens": 41,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "cache_salt": "s",
    }


async def test_a_stream_without_length_or_chunks_that_ends_with_done_is_ok() -> None:
    async def answer(call: Call) -> bytes | None:
        call.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + whole_stream())
        return None

    assert await outcome(answer) == "ok"


@pytest.mark.parametrize("size", [1, 2, 7])
async def test_a_stream_cut_into_single_bytes_reads_the_same(size: int) -> None:
    async def answer(call: Call) -> bytes:
        data = whole_stream(tokens=5).replace(b"\n", b"\r\n")
        return chunked(*(data[at : at + size] for at in range(0, len(data), size)))

    record = (await replayed(answer)).records[0]
    assert (record.outcome, len(record.gaps_s), record.output_tokens) == ("ok", 4, 5)


async def test_packets_of_one_byte_read_the_same() -> None:
    async def answer(call: Call) -> bytes:
        for byte in chunked(whole_stream(tokens=2)):
            call.writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        return b""

    assert await outcome(answer) == "ok"


async def test_a_connection_that_dies_mid_stream_is_a_cut_stream() -> None:
    async def answer(call: Call) -> bytes | None:
        call.writer.write(STREAM_HEAD + b"%x\r\n%b\r\n" % (len(token()), token()))
        return None

    assert await outcome(answer) == "stream_cut"


async def test_a_body_that_ends_without_done_is_an_unfinished_stream() -> None:
    async def answer(call: Call) -> bytes:
        return chunked(token(), token())

    assert await outcome(answer) == "stream_unfinished"


@pytest.mark.parametrize("tail", [b"", DONE])
async def test_an_error_event_is_a_stream_error_with_or_without_done(tail: bytes) -> None:
    async def answer(call: Call) -> bytes:
        return chunked(token(), b'data: {"error": {"message": "engine died", "type": "x"}}\n\n', tail or b": end\n\n")

    result = await replayed(answer)
    assert result.records[0].outcome == "stream_error"
    assert result.error_samples == ("stream_error: engine died",)


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable", "400 Bad Request", "307 Moved"])
async def test_another_status_is_named_by_its_number(status: str) -> None:
    async def answer(call: Call) -> bytes:
        return fixed(b'{"error":{"message":"busy"}}', status)

    result = await replayed(answer)
    kind = f"http_{status[:3]}"
    assert result.records[0].outcome == kind
    assert result.error_samples == (f"{kind}: busy",)
    assert report.build(result)["errors_by_kind"] == {kind: 1}


async def test_a_server_that_hangs_is_a_timeout() -> None:
    async def answer(call: Call) -> bytes | None:
        await call.reader.read()
        return None

    assert await outcome(answer) == "timeout"


async def test_a_server_that_stops_mid_stream_is_a_timeout() -> None:
    async def answer(call: Call) -> bytes | None:
        call.writer.write(STREAM_HEAD + b"%x\r\n%b\r\n" % (len(token()), token()))
        await call.reader.read()
        return None

    assert await outcome(answer) == "timeout"


async def test_a_stream_that_is_whole_but_never_closed_is_ok_when_its_time_is_up() -> None:
    async def answer(call: Call) -> bytes | None:
        data = whole_stream()
        call.writer.write(STREAM_HEAD + b"%x\r\n%b\r\n" % (len(data), data))
        await call.reader.read()
        return None

    assert await outcome(answer) == "ok"


async def test_an_interim_answer_is_passed_over() -> None:
    async def answer(call: Call) -> bytes:
        return b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + chunked(whole_stream())

    assert await outcome(answer) == "ok"


async def test_a_fresh_connection_closed_without_an_answer_is_a_reset() -> None:
    async def answer(call: Call) -> bytes | None:
        return None

    assert await outcome(answer) == "connection_reset"


@pytest.mark.parametrize(
    "wrong",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        STREAM_HEAD + b"zz\r\n",
    ],
)
async def test_bytes_that_are_not_http_are_a_bad_response(wrong: bytes) -> None:
    async def answer(call: Call) -> bytes:
        return wrong

    assert await outcome(answer) == "bad_response"


async def test_a_200_that_is_no_stream_is_a_bad_response() -> None:
    async def answer(call: Call) -> bytes:
        return fixed(b"<html>login</html>")

    assert await outcome(answer) == "bad_response"


async def test_done_without_a_token_is_named_as_such() -> None:
    async def answer(call: Call) -> bytes:
        return chunked(DONE)

    assert await outcome(answer) == "no_tokens"


async def test_a_server_that_goes_away_during_the_run_is_refused_connections() -> None:
    async with scripted(good) as server:
        options = ReplayOptions(server.url, timeout_s=5)

    async with scripted(good) as first:
        running = asyncio.create_task(
            replay(ReplayOptions(first.url), [request(0), request(1, at=0.5), request(2, at=0.5)])
        )
        await first.called.wait()
        first.stop()
        result = await running
    assert [record.outcome for record in result.records][:1] == ["ok"]
    assert {record.outcome for record in result.records[1:]} <= {"connection_refused", "ok"}
    assert "connection_refused" in {record.outcome for record in result.records}
    with pytest.raises(TargetError, match="is the server up"):
        await replay(options, [request()])


async def test_connections_are_kept_alive_and_reused() -> None:
    async with scripted(good) as server:
        result = await replay(ReplayOptions(server.url), [request(n, at=n * 0.05) for n in range(6)])
    assert [record.outcome for record in result.records] == ["ok"] * 6
    assert len({call.connection for call in server.calls}) == 1


async def test_a_kept_connection_that_the_server_has_closed_meanwhile_is_replaced_without_an_error() -> None:
    async def answer(call: Call) -> bytes | None:
        if call.number == 1:
            return None
        return chunked(whole_stream())

    result = await replayed(answer, 3, gap_s=0.05)
    assert [record.outcome for record in result.records] == ["ok"] * 3
    assert result.load.resent == 1


async def test_a_server_that_asks_to_close_is_given_a_new_connection() -> None:
    async def answer(call: Call) -> bytes | None:
        call.writer.write(fixed(whole_stream(), extra="connection: close\r\n"))
        return None

    async with scripted(answer) as server:
        result = await replay(ReplayOptions(server.url), [request(n, at=n * 0.05) for n in range(3)])
    assert [record.outcome for record in result.records] == ["ok"] * 3
    assert len({call.connection for call in server.calls}) == 3


async def test_an_ipv6_url_works() -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 loopback here")
    async with scripted(good, host="::1") as server:
        assert (await replay(ReplayOptions(server.url), [request()])).records[0].ok


async def test_a_server_without_tokenizer_leaves_the_prompt_length_in_doubt() -> None:
    async with scripted(good, tokenizer=False) as server:
        result = await replay(ReplayOptions(server.url), [request()])
    assert result.words_per_token is None
    assert any("no /tokenize" in note for note in report.build(result)["notes"])


async def test_a_model_the_server_lacks_is_bad_input() -> None:
    async with scripted(good) as server:
        with pytest.raises(TargetError, match="does not serve model 'x'; it serves m"):
            await replay(ReplayOptions(server.url, model="x"), [request()])
