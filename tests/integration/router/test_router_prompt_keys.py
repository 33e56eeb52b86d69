"""Text prompts are matched by token ids from the model's own tokenizer, and by their bytes where that cannot be."""

import json
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tonnage_router import prompt_keys

WORDS = [f"w{number}" for number in range(600)]
EXPLAIN = b"x-tonnage-explain: 1\r\n"
TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A word is a token; its number in the list is its id."""
    vocabulary = {word: number for number, word in enumerate([*WORDS, "user", "assistant"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return tmp_path


async def told_router(
    engines: Any, route: Any, publisher: Any, model_dir: Path, ids: list[int], **settings: Any
) -> Any:
    """A router over one engine that has told that it holds `ids`."""
    (engine,) = await engines()
    spec = {"url": engine.url, "model": "m", "kv_events_port": publisher.bind()}
    router = await route([engine], endpoints=[spec], tokenizers={"m": model_dir}, **settings)
    follower = next(iter(router.gateway.fleet)).follower
    await router.until(lambda: follower.document()["live"])
    publisher.stored(ids)
    await router.until(lambda: follower.document()["blocks"] == len(ids) // 16)
    return router


async def hits(router: Any, body: dict[str, Any], path: bytes = b"/v1/completions") -> int:
    answer = await router.post(orjson.dumps({"model": "m", **body}), path, EXPLAIN)
    assert answer.status == 200, answer.body
    return int(answer.header(b"x-tonnage-hit-tokens") or b"-1")


async def test_text_and_conversations_are_matched_by_their_ids(
    engines: Any, route: Any, publisher: Any, model_dir: Path
) -> None:
    ids = list(range(160))
    router = await told_router(engines, route, publisher, model_dir, ids)
    text = " ".join(WORDS[:160])
    assert await hits(router, {"prompt": text + " w9"}) == 160  # encoded by the thread
    assert await hits(router, {"prompt": [text]}) == 144  # the last token is always computed
    assert await hits(router, {"prompt": " ".join(WORDS[:40])}) == 32  # encoded at once
    assert await hits(router, {"prompt": [*ids, 9]}) == 160
    assert router.gateway.decisions[-1].document()["prompt_tokens"] == 161
    publisher.stored([600, *range(63)], b"chat")
    follower = next(iter(router.gateway.fleet)).follower
    await router.until(lambda: follower.document()["blocks"] == 14)
    talk = {"messages": [{"role": "user", "content": " ".join(WORDS[:63])}, {"role": "assistant", "content": "w1"}]}
    assert await hits(router, talk, b"/v1/chat/completions") == 64
    assert router.gateway.metrics.prompt_keys["exact"] == 5


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (b"/v1/completions", {"prompt": [[1, 2], [3]]}),
        (b"/v1/completions", {"prompt": ["a", "b"]}),
        (b"/v1/completions", {"prompt": "\ud800"}),
        (b"/v1/completions", {"prompt": None}),
        (b"/v1/completions", {"prompt": [-1, 2]}),
        (b"/v1/completions", {"prompt": "w1", "truncate_prompt_tokens": 5}),
        (b"/v1/chat/completions", {"messages": [{"role": "user", "content": "w1"}], "tools": [{"type": "function"}]}),
        (b"/v1/embeddings", {"input": "w1"}),
        (b"/v1/completions", {"prompt": "w1", "model": "other"}),
    ],
)
async def test_what_has_no_sure_ids_is_matched_by_its_bytes(
    engines: Any, route: Any, publisher: Any, model_dir: Path, path: bytes, body: dict[str, Any]
) -> None:
    router = await told_router(engines, route, publisher, model_dir, list(range(16)))
    router.gateway.fleet.seen_models.add("other")
    await router.post(json.dumps({"model": "m", **body}).encode(), path)
    assert router.gateway.metrics.prompt_keys == {"approximate": 1}


async def test_text_beyond_what_may_wait_for_the_thread_is_matched_by_its_bytes(
    engines: Any, route: Any, publisher: Any, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_keys, "MAX_PENDING_CHARS", 1000)
    router = await told_router(engines, route, publisher, model_dir, list(range(16)))
    assert await hits(router, {"prompt": " ".join(WORDS)}) == 0
    assert router.gateway.metrics.prompt_keys == {"busy": 1, "approximate": 1}


async def test_a_client_that_leaves_while_its_text_is_encoded_leaves_no_count(
    engines: Any, route: Any, publisher: Any, model_dir: Path
) -> None:
    router = await told_router(engines, route, publisher, model_dir, list(range(16)))
    tokenizer = router.gateway.prompts._tokenizers["m"]
    go, plain = threading.Event(), tokenizer.encode_pieces

    def slow(pieces: list[str]) -> list[bytes]:
        go.wait(20)
        return list(plain(pieces))

    tokenizer.encode_pieces = slow
    client = await router.client()
    client.send(orjson.dumps({"model": "m", "prompt": " ".join(WORDS)}), b"/v1/completions")
    await router.until(lambda: bool(router.gateway.active))
    client.close()
    await router.settled()
    go.set()
    tokenizer.encode_pieces = plain
    assert await hits(router, {"prompt": "w0 " + " ".join(WORDS)}) == 0
    assert router.counters() == [(0, 0, 0)] and router.gateway.buffered == 0
    assert router.gateway.prompts._pending_chars == 0


async def test_a_tokenizer_of_another_model_is_found_out_and_left(
    engines: Any, route: Any, publisher: Any, model_dir: Path
) -> None:
    router = await told_router(engines, route, publisher, model_dir, list(range(16)))
    for number in range(prompt_keys.MISMATCHES):  # the engine says 10 prompt tokens each time
        assert await hits(router, {"prompt": " ".join(WORDS[: 16 + number])}) in (0, 16)
    assert router.gateway.prompts._tokenizers == {}
    await hits(router, {"prompt": " ".join(WORDS)})
    assert router.gateway.metrics.prompt_keys == {
        "exact": prompt_keys.MISMATCHES,
        "mismatch": prompt_keys.MISMATCHES,
        "approximate": 1,
    }


async def test_without_kv_events_nothing_is_encoded(engines: Any, route: Any, model_dir: Path) -> None:
    router = await route(await engines(), tokenizers={"m": model_dir})
    assert await hits(router, {"prompt": " ".join(WORDS)}) == 0
    assert router.gateway.metrics.prompt_keys == {}
