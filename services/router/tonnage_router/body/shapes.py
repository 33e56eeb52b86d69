"""Every body shape of the inference paths, reduced to `BodyFacts`.

Only JSON types are checked that routing needs: a body the engine would refuse is the engine's to refuse. Media are
never copied or scanned whole: a data URL counts by its length and three samples of it.
"""

import json
import struct
from collections.abc import Callable
from typing import Any, Final

import orjson

from tonnage_router.body.facts import BodyFacts
from tonnage_router.errors import BadBodyError

_MEDIA_SAMPLE = 64
_LONG_VALUE = 512
_MOST_TOKENS: Final = 1 << 20
"""Answers asked to be longer count as this long: no engine gives more, and a number of any size would fill the load of
its endpoint, or fit no float."""
_MOST_SAMPLES: Final = 1 << 14
"""The same of `n`: vLLM's own limit."""
TOO_DEEP: Final = "the body is nested too deeply"
Document = dict[str, Any]


def parse(body: bytes) -> Document:
    """The body as a JSON object; `BadBodyError` says what is wrong.

    orjson first; the standard library reads what orjson refuses and engines take: lone surrogates, NaN, huge numbers.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = _parse_leniently(body)
    if type(document) is not dict:
        raise BadBodyError(f"the body must be a JSON object, not {_kind(document)}")
    return document


def _parse_leniently(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8-sig", "surrogatepass"))  # from bytes it would take UTF-16 as well
    except RecursionError as error:
        raise BadBodyError(TOO_DEEP) from error
    except UnicodeDecodeError as error:
        raise BadBodyError("the body is not valid UTF-8") from error
    except ValueError as error:
        raise BadBodyError(f"the body is not valid JSON: {error}" if body else "the body is empty") from error


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
    return names.get(type(value), "null")


def facts(document: Document, read_prompt: "PromptReader") -> BodyFacts:
    """The facts of a parsed body; `read_prompt` is the path's entry of `PROMPTS`."""
    model = document.get("model")
    if model is not None and type(model) is not str:
        raise BadBodyError(f"model must be a string, not {_kind(model)}", "model")
    stream = document.get("stream")
    if stream is not None and type(stream) is not bool:
        raise BadBodyError(f"stream must be a boolean, not {_kind(stream)}", "stream")
    try:
        prompt, tokens = read_prompt(document)
    except RecursionError as error:
        raise BadBodyError(TOO_DEEP) from error
    options = document.get("stream_options")
    return BodyFacts(
        model,
        stream is True,
        prompt,
        tokens,
        _first_count(document),
        0 if read_prompt in _ANSWERLESS else _samples(document),
        _text_or_none(document.get("cache_salt")),
        _session(document),
        type(options) is dict and options.get("include_usage") is True,
        document,
    )


def _first_count(document: Document) -> int | None:
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        value = document.get(name)
        if type(value) is int and value > 0:
            return min(value, _MOST_TOKENS)
    return None


def _samples(document: Document) -> int:
    """Answers to be generated: `n` to each prompt of a batch."""
    each, prompt = document.get("n"), document.get("prompt")
    prompts = len(prompt) if type(prompt) is list and prompt and type(prompt[0]) is not int else 1
    return min(prompts * each if type(each) is int and each > 1 else prompts, _MOST_SAMPLES)


def _text_or_none(value: object) -> str | None:
    return value if type(value) is str else None


def _session(document: Document) -> str | None:
    """A key that stays equal over a conversation; ids of single requests never count."""
    for name in ("session_id", "prompt_cache_key", "user"):
        value = document.get(name)
        if type(value) is str and value:
            return value
    return None


PromptReader = Callable[[Document], tuple[bytes, int | None]]


def _chat(document: Document) -> tuple[bytes, int | None]:
    """Tools come first: chat templates put them at or near the system prompt."""
    return _conversation(document, document.get("messages"), None)


def _anthropic(document: Document) -> tuple[bytes, int | None]:
    return _conversation(document, document.get("messages"), document.get("system"))


def _responses(document: Document) -> tuple[bytes, int | None]:
    given = document.get("input")
    turns = [{"role": "user", "content": given}] if type(given) is str else given
    return _conversation(document, turns, document.get("instructions"))


def _conversation(document: Document, messages: object, system: object) -> tuple[bytes, int | None]:
    parts: list[str] = []
    tools = document.get("tools")
    if tools:
        parts.append(_dump(tools))
    if system is not None:
        parts.append("\x01system\x02")
        _content(system, parts)
    if type(messages) is list:
        for message in messages:
            _message(message, parts)
    return _joined(parts), None


def _message(message: object, parts: list[str]) -> None:
    if type(message) is not dict:
        return
    role = message.get("role")
    parts.append(f"\x01{role}\x02" if type(role) is str else f"\x01{message.get('type')}\x02")
    content = message.get("content")
    if type(content) is str:
        parts.append(content)
    elif content is not None:
        _content(content, parts)
    if len(message) == 2 and content is not None:
        return
    for name in ("tool_calls", "function_call", "arguments", "output", "call_id", "tool_call_id", "name"):
        value = message.get(name)
        if value is not None:
            parts.append(value if type(value) is str else _dump(value))


def _content(content: object, parts: list[str]) -> None:
    if type(content) is str:
        parts.append(content)
    elif type(content) is list:
        for part in content:
            _part(part, parts)


def _part(part: object, parts: list[str]) -> None:
    if type(part) is str:
        parts.append(part)
    elif type(part) is dict:
        text = part.get("text")
        if type(text) is str:
            parts.append(text)
            return
        for name, value in part.items():
            if value is not None:
                parts.append(f"\x03{name}\x04")
                _media(value, parts)


def _media(value: object, parts: list[str]) -> None:
    """A URL or base64 text, perhaps inside an object: short ones whole, long ones by length and samples."""
    if type(value) is str:
        if len(value) <= _LONG_VALUE:
            parts.append(value)
        else:
            middle = len(value) // 2
            samples = value[:_MEDIA_SAMPLE], value[middle : middle + _MEDIA_SAMPLE], value[-_MEDIA_SAMPLE:]
            parts.append(f"{len(value)}:{':'.join(samples)}")
    elif type(value) is dict:
        for name, inner in value.items():
            parts.append(name)
            _media(inner, parts)
    elif type(value) is list:
        _content(value, parts)
    else:
        parts.append(str(value))


def _completion(document: Document) -> tuple[bytes, int | None]:
    return _prompt(document.get("prompt"))


def _embedding(document: Document) -> tuple[bytes, int | None]:
    if "messages" in document:
        return _chat(document)
    return _prompt(document.get("input"))


def _pair(document: Document) -> tuple[bytes, int | None]:
    """Rerank and score: the query, then the texts compared with it."""
    parts: list[str] = []
    for name in ("query", "text_1", "queries", "documents", "text_2"):
        value = document.get(name)
        if value is not None:
            _content(value, parts)
    return _joined(parts), None


def _prompt(prompt: object) -> tuple[bytes, int | None]:
    """A string, token ids, or a batch of either; a batch is keyed by its members in order."""
    if type(prompt) is str:
        return prompt.encode("utf-8", "surrogatepass"), None
    if type(prompt) is not list or not prompt:
        return b"", None
    first = prompt[0]
    if type(first) is int:
        return _ids(prompt), len(prompt)
    if type(first) is list:
        flat = [token for member in prompt if type(member) is list for token in member]
        return _ids(flat), len(flat)
    return _joined([member for member in prompt if type(member) is str]), None


def _ids(tokens: list[Any]) -> bytes:
    try:
        return struct.pack(f"<{len(tokens)}I", *tokens)
    except struct.error:
        return b""  # a negative, huge or non-integer id: the engine's to refuse


def _dump(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value)


def _joined(parts: list[str]) -> bytes:
    text = "".join(parts)
    try:
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return text.encode("utf-8", "surrogatepass")


def _nothing(document: Document) -> tuple[bytes, int | None]:
    return b"", None


PROMPTS: Final[dict[bytes, PromptReader]] = {
    b"/v1/chat/completions": _chat,
    b"/v1/completions": _completion,
    b"/v1/embeddings": _embedding,
    b"/v1/responses": _responses,
    b"/v1/messages": _anthropic,
    b"/v1/messages/count_tokens": _nothing,
    b"/v1/rerank": _pair,
    b"/v2/rerank": _pair,
    b"/rerank": _pair,
    b"/v1/score": _pair,
    b"/score": _pair,
    b"/classify": _embedding,
    b"/pooling": _embedding,
    b"/tokenize": _nothing,
    b"/detokenize": _nothing,
}
"""The inference paths reachable through the router, all by POST; everything else is 404."""
_ANSWERLESS: Final = frozenset({_embedding, _pair, _nothing})
"""Readers of paths that generate nothing."""
