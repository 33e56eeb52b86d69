"""What a server says of itself is read once, and what it does not say is not made up."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import orjson
import pytest

from tests.unit.loadgen.conftest import fixed
from tonnage_core.trace_prompts import words
from tonnage_loadgen.discover import FleetCache, fleet_cache, served_model, usable_vocabulary, words_per_token
from tonnage_loadgen.errors import TargetError
from tonnage_loadgen.target import parse_target

Reply = Callable[[str, dict[str, object]], bytes]
CONFIG = 'vllm:cache_config_info{block_size="%s",effective_block_size="9",engine="%d",num_gpu_blocks="%s"} 1.0\n'


@asynccontextmanager
async def server(reply: Reply) -> AsyncIterator[str]:
    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(x[15:]) for x in head.lower().split("\r\n") if x.startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        writer.write(reply(head.split(" ")[1], orjson.loads(body) if body else {}))
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(one, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()


def json(document: object, status: str = "200 OK") -> bytes:
    return fixed(orjson.dumps(document), status)


async def test_the_first_model_is_taken_with_its_context_length() -> None:
    cards = [{"id": "a", "max_model_len": 4096}, {"id": "b"}]
    async with server(lambda path, body: json({"data": cards})) as url:
        assert (await served_model(parse_target(url), None)).max_model_len == 4096
        assert (await served_model(parse_target(url), "b")).max_model_len is None


async def test_a_server_without_a_model_list_needs_the_model_named() -> None:
    async with server(lambda path, body: json({}, "404 Not Found")) as url:
        with pytest.raises(TargetError, match="name one with --model"):
            await served_model(parse_target(url), None)
        assert (await served_model(parse_target(url), "m")).model == "m"


async def test_a_byte_tokenizer_makes_six_tokens_of_a_word() -> None:
    async with server(lambda path, body: json({"tokens": [ord(c) for c in str(body["prompt"])]})) as url:
        assert await words_per_token(parse_target(url), "m") == pytest.approx(1 / 6)
        found = await usable_vocabulary(parse_target(url), "m")
    assert set(found.ids) == {ord(c) for c in " bdfghjklmnprstvzaeio"}


@pytest.mark.parametrize("answer", [json({}, "404 Not Found"), fixed(b"not json"), json({"tokens": ["x"]}), json([])])
async def test_a_useless_tokenizer_answer_is_no_knowledge(answer: bytes) -> None:
    async with server(lambda path, body: answer) as url:
        assert await words_per_token(parse_target(url), "m") is None


async def test_without_a_tokenizer_the_widest_accepted_range_is_used() -> None:
    def reply(path: str, body: dict[str, object]) -> bytes:
        prompt = body.get("prompt")
        if path.endswith("/completions") and isinstance(prompt, list) and prompt[0] < 10_000:
            return json({"choices": []})
        return json({"error": {"message": "Token id is out of vocabulary"}}, "400 Bad Request")

    async with server(reply) as url:
        found = await usable_vocabulary(parse_target(url), "m")
    assert (found.ids[0], found.ids[-1]) == (32, 7999)


async def test_a_server_that_refuses_all_token_prompts_is_one_clear_error() -> None:
    async with server(lambda path, body: json({}, "400 Bad Request")) as url:
        with pytest.raises(TargetError, match="takes no token-id prompt; use --prompt-format text"):
            await usable_vocabulary(parse_target(url), "m")


async def test_the_simulated_engines_words_are_recognised() -> None:
    from tonnage_core.engine_text import encode

    async with server(lambda path, body: json({"tokens": encode(str(body["prompt"]))})) as url:
        assert await usable_vocabulary(parse_target(url), "m") is words()
        assert await words_per_token(parse_target(url), "m") == 1.0


async def test_the_fleets_blocks_are_summed_over_engines_and_ranks() -> None:
    metrics = "# HELP x\n" + CONFIG % ("16", 0, "100") + CONFIG % ("16", 1, "50")
    async with server(lambda path, body: fixed(metrics.encode())) as url:
        assert await fleet_cache([url, url]) == FleetCache(16, 300)


@pytest.mark.parametrize("metrics", ["", "up 1\n", CONFIG % ("16", 0, "None"), CONFIG % ("x", 0, "5")])
async def test_an_engine_that_does_not_say_leaves_the_fleets_cache_unknown(metrics: str) -> None:
    async with server(lambda path, body: fixed(metrics.encode())) as url:
        assert await fleet_cache([url]) is None
    assert await fleet_cache([]) is None
    assert await fleet_cache(["http://127.0.0.1:1"]) is None


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:80", "ftp://h", "http://", "http://h:99999", "http://h:x", "http://[::1", "http://h/?a=1", "http://u@h",
     "http://h/\u00e9", "http://h/a b", "http://\u2713"],
)  # fmt: skip
def test_a_bad_url_is_one_clear_error(url: str) -> None:
    with pytest.raises(TargetError, match=r"write it like|only ASCII"):
        parse_target(url)


def test_urls_are_taken_apart() -> None:
    target = parse_target("https://[::1]:8443/api/v1/")
    assert (target.host, target.port, target.prefix, target.tls) == ("::1", 8443, "/api", True)
    assert target.url == "https://[::1]:8443/api"
    assert parse_target("http://h/v1").authority == "h:80"
