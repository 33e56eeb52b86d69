"""What the server says of itself before the load: model, context length, tokenizer, cache size."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tonnage_core.engine_text import TOKENS, WORD_BASE, decode
from tonnage_core.trace_prompts import Vocabulary, words
from tonnage_loadgen.errors import TargetError
from tonnage_loadgen.plain_http import Answer, ask
from tonnage_loadgen.target import Target, parse_target

Headers = tuple[tuple[str, str], ...]
_SAMPLE_WORDS = 512
_TOP_IDS = (TOKENS - 1, 49151, 31999, 15999, 7999, 1999, 511, 255)
"""Upper ends of token-id ranges to try on a server without /tokenize, from the simulated engine's to bytes alone."""
_LOWEST_ID = 32
"""Ids below are often special tokens."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model as /v1/models lists it; `max_model_len` is None when the server does not say."""

    model: str
    max_model_len: int | None


@dataclass(frozen=True, slots=True)
class FleetCache:
    """Prefix-cache room of all engines together, from their `vllm:cache_config_info`."""

    block_size: int
    blocks: int


async def served_model(target: Target, wanted: str | None, headers: Headers = ()) -> Served:
    """The model `wanted`, or the server's first one. `TargetError` when it has none or not that one."""
    answer = await ask(target, "/v1/models", headers=headers)
    document = answer.document()
    listed = document.get("data") if isinstance(document, dict) else None
    cards = [card for card in listed or () if isinstance(card, dict) and isinstance(card.get("id"), str)]
    if answer.status != 200 or not cards:
        if wanted is not None:
            return Served(wanted, None)
        raise TargetError(f"{target.url}/v1/models answers {answer.status} and no model; name one with --model")
    chosen = [card for card in cards if wanted in (None, card["id"])]
    if not chosen:
        names = ", ".join(str(card["id"]) for card in cards[:8])
        raise TargetError(f"{target.url} does not serve model {wanted!r}; it serves {names}")
    length = chosen[0].get("max_model_len")
    return Served(chosen[0]["id"], length if type(length) is int and length > 0 else None)


async def words_per_token(target: Target, model: str, headers: Headers = ()) -> float | None:
    """How many prompt words make one token of the server's tokenizer (1 for the simulated engine); None: unknown."""
    tokens = await _tokenize(target, model, decode(words().filler[:_SAMPLE_WORDS]), headers)
    return min(1.0, _SAMPLE_WORDS / len(tokens)) if tokens else None


async def usable_vocabulary(target: Target, model: str, headers: Headers = ()) -> Vocabulary:
    """Token ids the server surely takes in a prompt.

    The simulated engine's words if its tokenizer has them, else the ids its tokenizer makes of a sample text, else (no
    /tokenize) the widest plain range of which it accepts the highest id.
    """
    top_word = decode([TOKENS - 1])
    if await _tokenize(target, model, top_word, headers) == [TOKENS - 1]:
        return words()
    found = await _tokenize(target, model, decode(words().filler[: 8 * _SAMPLE_WORDS]), headers)
    distinct = sorted(set(found))
    if len(distinct) > 2:
        return Vocabulary(distinct)
    for top in _TOP_IDS:
        probe = {"model": model, "prompt": [top], "max_tokens": 1}
        if (await ask(target, "/v1/completions", probe, headers=headers, timeout_s=60.0)).status == 200:
            return Vocabulary(range(WORD_BASE if top == TOKENS - 1 else _LOWEST_ID, top + 1))
    raise TargetError(f"{target.url} takes no token-id prompt; use --prompt-format text")


async def fleet_cache(engine_urls: Sequence[str], headers: Headers = ()) -> FleetCache | None:
    """The engines' blocks summed; None when one does not answer or say, or their block sizes differ.

    Raises `TargetError` for a URL that is none.
    """
    found = []
    for target in [parse_target(url) for url in engine_urls]:
        try:
            one = _cache_config(await ask(target, "/metrics", headers=headers))
        except TargetError:
            one = None
        if one is None:
            return None
        found.append(one)
    if not found or len({each.block_size for each in found}) != 1:
        return None
    return FleetCache(found[0].block_size, sum(each.blocks for each in found))


async def _tokenize(target: Target, model: str, text: str, headers: Headers) -> list[int]:
    body = {"model": model, "prompt": text, "add_special_tokens": False}
    document: Any = (await ask(target, "/tokenize", body, headers=headers)).document()
    tokens = document.get("tokens") if isinstance(document, dict) else None
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        return []
    return tokens


def _cache_config(answer: Answer) -> FleetCache | None:
    if answer.status != 200:
        return None
    blocks = size = 0
    for line in answer.body.decode("utf-8", "replace").splitlines():
        if line.startswith("vllm:cache_config_info{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            one, size_text = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
            if not (one.isdigit() and size_text.isdigit()):
                return None
            blocks, size = blocks + int(one), int(size_text)
    return FleetCache(size, blocks) if blocks and size else None
