"""Request bytes from trace requests, cheap enough to make just before they are due: slices of one prepared text."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import orjson

from tonnage_core.engine_text import WORD_BASE, decode
from tonnage_core.trace_prompts import Vocabulary, filler_start, words
from tonnage_core.traces import TraceRequest
from tonnage_loadgen.target import Target

WORD_BYTES = 6
PromptWriter = Callable[[TraceRequest], bytes]
"""A request's prompt as a JSON value."""


@dataclass(frozen=True, slots=True)
class RequestFields:
    """What every request of a run has in common beside its path."""

    model: str
    ignore_eos: bool = True
    cache_salt: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    request_id_prefix: str = "tonnage"


class RequestTemplate:
    """Whole HTTP requests from trace requests: the fixed parts are encoded once."""

    def __init__(self, target: Target, prompt: PromptWriter, fields: RequestFields) -> None:
        lines = [
            f"POST {target.prefix}/v1/completions HTTP/1.1",
            f"host: {target.authority}",
            "content-type: application/json",
            *(f"{name}: {value}" for name, value in fields.headers),
            f"x-request-id: {fields.request_id_prefix}-",
        ]
        self._head = "\r\n".join(lines).encode("latin-1")
        self._before = b'{"model":' + orjson.dumps(fields.model) + b',"prompt":'
        after = b',"temperature":0,"stream":true,"stream_options":{"include_usage":true}'
        after += b',"ignore_eos":true' if fields.ignore_eos else b""
        after += b"" if fields.cache_salt is None else b',"cache_salt":' + orjson.dumps(fields.cache_salt)
        self._after = after + b"}"
        self._prompt = prompt

    def write(self, request: TraceRequest) -> bytes:
        """Head and body of a streaming completion of exactly `output_length` tokens."""
        prompt = self._prompt(request)
        limit = b',"max_tokens":%d' % request.output_length
        length = len(self._before) + len(prompt) + len(limit) + len(self._after)
        rest = b"%d\r\ncontent-length: %d\r\n\r\n" % (request.index, length)
        return b"".join((self._head, rest, self._before, prompt, limit, self._after))


class TextPrompts:
    """Prompts as text of the simulated engine's words, `words_per_token` for each token of the trace (1 = exact).

    A real engine's tokenizer makes several tokens of a word: with 1 / tokens-per-word the lengths come out right.
    """

    def __init__(self, words_per_token: float = 1.0) -> None:
        self._scale = words_per_token
        self._vocabulary = words()
        self._filler = decode(self._vocabulary.filler).encode("ascii")
        self._words = decode(self._vocabulary.ids).encode("ascii")

    def __call__(self, request: TraceRequest) -> bytes:
        """The prompt as a JSON string; words need no escapes."""
        full = max(1, int(request.block_tokens * self._scale))
        left = request.input_length
        pieces = [b'"']
        for hash_id in request.hash_ids:
            whole = left >= request.block_tokens
            pieces.append(self._block(hash_id, full if whole else max(1, int(left * self._scale))))
            left -= request.block_tokens
        pieces.append(b'"')
        return b"".join(pieces)

    def _block(self, hash_id: int, count: int) -> bytes:
        head = self._vocabulary.head(hash_id)[:count]
        start = filler_start(hash_id) * WORD_BYTES
        spots = [(token - WORD_BASE) * WORD_BYTES for token in head]
        spelled = b"".join([self._words[spot : spot + WORD_BYTES] for spot in spots])
        return spelled + self._filler[start : start + (count - len(head)) * WORD_BYTES]


class TokenPrompts:
    """Prompts as token ids of `vocabulary`, exactly `input_length` of them."""

    def __init__(self, vocabulary: Vocabulary | None = None) -> None:
        self._vocabulary = vocabulary or words()
        written = [b"%d," % token for token in self._vocabulary.filler]
        self._filler = b"".join(written)
        self._offsets = [0, *accumulate(map(len, written))]

    def __call__(self, request: TraceRequest) -> bytes:
        """The prompt as a JSON array of numbers."""
        left = request.input_length
        pieces = []
        for hash_id in request.hash_ids:
            pieces.append(self._block(hash_id, min(left, request.block_tokens)))
            left -= request.block_tokens
        return b"[" + b"".join(pieces)[:-1] + b"]"

    def _block(self, hash_id: int, count: int) -> bytes:
        head = self._vocabulary.head(hash_id)[:count]
        start = filler_start(hash_id)
        first, last = self._offsets[start], self._offsets[start + count - len(head)]
        return b"".join(b"%d," % token for token in head) + self._filler[first:last]
