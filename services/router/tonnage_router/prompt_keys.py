"""What a prompt is matched by: hashes of its bytes always, of its token ids where engines tell what they cache.

Token ids come from the body, or from the model's own tokenizer when the operator gave its files; never from a call to
an engine. Without ids a request is matched by its bytes alone, against what was routed.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from tonnage_core.errors import BadInputError
from tonnage_core.prefix_index.block_hash import hash_bytes, seed_hash
from tonnage_core.prefix_index.kv_events import TOKEN_ID_BYTES, exact_seed

if TYPE_CHECKING:
    from tonnage_router.adapters.tokenizer import PromptTokenizer
    from tonnage_router.exchange import Exchange
    from tonnage_router.gateway import Gateway
    from tonnage_router.settings import RouterSettings

log = logging.getLogger(__name__)

MAX_BLOCKS: Final = 2048
"""Blocks of a prompt that are hashed as bytes: 1 MiB at the default block size; what follows cannot change the choice
much."""
MAX_EXACT_TOKENS: Final = 1 << 17
"""Tokens of a prompt that are hashed as ids."""
INLINE_CHARS = 512
"""New text encoded at once; more goes to a thread, so that no stream waits for it."""
MAX_PENDING_CHARS = 1 << 21
"""Text waiting for that thread; beyond it requests are matched by their bytes."""
MISMATCHES = 20
"""Answers in a row whose prompt had another number of tokens, after which a tokenizer is held to be the wrong one."""
COMPLETIONS, CHAT = b"/v1/completions", b"/v1/chat/completions"
UNSURE = ("truncate_prompt_tokens", "prompt_embeds", "suffix")
"""Fields under which the engine computes other tokens than the prompt's."""


class PromptKeys:
    """Measures requests: estimated or exact prompt tokens, and the chains that the scheduler matches."""

    def __init__(self, gateway: "Gateway") -> None:
        settings = gateway.settings
        self._gateway = gateway
        self._hashes = gateway.profile.hashes_prompts
        self._seeds: dict[str, bytes] = {}
        self._sizes: tuple[int, ...] = ()
        self.usual_size: int | None = None
        """Tokens of a KV block, as the first engine told it."""
        self._tokenizers = _read_tokenizers(settings)
        self._mismatches = dict.fromkeys(self._tokenizers, 0)
        self._encoder = ThreadPoolExecutor(1, "tokenizer") if self._tokenizers else None
        self._pending_chars = 0

    def block_sizes_changed(self) -> None:
        """Some endpoint began or stopped to tell what it caches."""
        sizes = {endpoint.candidate.kv_block_size for endpoint in self._gateway.fleet}
        self._sizes = tuple(sorted(size for size in sizes if size is not None))
        if self._sizes and self.usual_size is None:
            self.usual_size = self._sizes[0]
            for endpoint in self._gateway.fleet:
                if endpoint.follower is not None:
                    endpoint.follower.tell()

    def measure(self, exchange: "Exchange", then: "Callable[[Exchange], None]") -> None:
        """Set the exchange's prompt tokens and chains, then go on: at once, or when its text is encoded."""
        self._by_bytes(exchange)
        document, exchange.facts.document = exchange.facts.document, None
        if not self._sizes or not self._hashes or document is None:
            then(exchange)
            return
        found = self._ids(exchange, document, then)
        if not isinstance(found, _Later):
            self._by_ids(exchange, found)
            then(exchange)

    def stop(self) -> None:
        """Let the thread go."""
        if self._encoder is not None:
            self._encoder.shutdown(wait=False, cancel_futures=True)

    def answered(self, exchange: "Exchange", prompt_tokens: int) -> None:
        """The engine's own count of a prompt's tokens: a tokenizer that keeps being wrong is switched off."""
        model = self._base(exchange)
        if not exchange.encoded or model not in self._tokenizers:
            return
        if exchange.prompt_tokens == prompt_tokens:
            self._mismatches[model] = 0
            return
        self._mismatches[model] += 1
        self._count("mismatch")
        if self._mismatches[model] >= MISMATCHES:
            del self._tokenizers[model]
            log.error("the tokenizer's prompts are not the engine's: not used any more", extra={"model": model})

    # --- by bytes -----------------------------------------------------------------------------------------------------

    def _by_bytes(self, exchange: "Exchange") -> None:
        facts, block = exchange.facts, self._gateway.limits.block_bytes
        model, prompt = str(facts.model), facts.prompt
        if facts.tokens is not None:
            exchange.prompt_tokens, exchange.tokens_per_block = facts.tokens, block / 4
        else:
            ratio = self._gateway.estimate.ratio(model)
            exchange.prompt_tokens, exchange.tokens_per_block = int(len(prompt) / ratio), block / ratio
        if self._hashes and len(prompt) >= block:
            exchange.chain = hash_bytes(self._seed(model, facts.salt), prompt[: MAX_BLOCKS * block], block)

    def _seed(self, model: str, salt: str | None) -> bytes:
        parent = self._gateway.lora.parent(model)
        base, adapter = (model, None) if parent is None else (parent, model)
        if salt is not None:
            return seed_hash(base, adapter, salt)
        seed = self._seeds.get(model)
        if seed is None:
            seed = self._seeds[model] = seed_hash(base, adapter, None)
        return seed

    def _base(self, exchange: "Exchange") -> str:
        """The base model: adapters are known from the settings or from an engine's list."""
        model = str(exchange.facts.model)
        return self._gateway.lora.parent(model) or self._gateway.fleet.parents.get(model) or model

    # --- by token ids -------------------------------------------------------------------------------------------------

    def _by_ids(self, exchange: "Exchange", ids: bytes | None) -> None:
        """Chains over packed ids for every block size in use. The last token is always computed: no match covers it."""
        self._count("approximate" if ids is None else "exact")
        if ids is None:
            return
        model = str(exchange.facts.model)
        seed = exact_seed(model if self._base(exchange) != model else None, exchange.facts.salt)
        exchange.prompt_tokens = len(ids) // TOKEN_ID_BYTES
        hashed = ids[: min(len(ids) - TOKEN_ID_BYTES, MAX_EXACT_TOKENS * TOKEN_ID_BYTES)]
        exchange.exact = {size: hash_bytes(seed, hashed, size * TOKEN_ID_BYTES) for size in self._sizes}

    def _ids(
        self, exchange: "Exchange", document: Mapping[str, Any], then: "Callable[[Exchange], None]"
    ) -> "bytes | _Later | None":
        """Packed ids of the prompt; None when they cannot be known; `_LATER` when `then` is called with them later."""
        if any(document.get(name) for name in UNSURE):
            return None
        tokenizer = self._tokenizers.get(self._base(exchange))
        if exchange.incoming.path == COMPLETIONS:
            prompt = _only_prompt(document.get("prompt"))
            if type(prompt) is list:
                return exchange.facts.prompt or None
            text, special = prompt, document.get("add_special_tokens", True)
        elif exchange.incoming.path == CHAT and tokenizer is not None and tokenizer.template is not None:
            text, special = tokenizer.template.render(document), document.get("add_special_tokens", False)
        else:
            return None
        if tokenizer is None or type(text) is not str:
            return None
        return self._encode(exchange, tokenizer, text, special is True, then)

    def _encode(
        self,
        exchange: "Exchange",
        tokenizer: "PromptTokenizer",
        text: str,
        special: bool,
        then: "Callable[[Exchange], None]",
    ) -> "bytes | _Later | None":
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:  # a lone surrogate: the engine's to refuse
                return None
        exchange.encoded = True
        pieces = tokenizer.pieces(text)
        ids = tokenizer.known(pieces)
        missing = [piece for piece in dict.fromkeys(pieces) if piece not in ids]
        length = sum(map(len, missing))
        if length > INLINE_CHARS:
            return self._encode_later(exchange, tokenizer, _Text(pieces, ids, missing, length, special), then)
        if missing:
            began = time.perf_counter()
            self._keep(tokenizer, ids, missing, tokenizer.encode_pieces(missing), began)
        return tokenizer.joined(pieces, ids, special=special)

    def _keep(
        self,
        tokenizer: "PromptTokenizer",
        ids: dict[str, bytes],
        missing: Sequence[str],
        encoded: Sequence[bytes],
        began: float,
    ) -> None:
        ids.update(zip(missing, encoded, strict=True))
        tokenizer.remember(missing, encoded)
        self._gateway.metrics.encoding.observe(time.perf_counter() - began)

    def _encode_later(
        self, exchange: "Exchange", tokenizer: "PromptTokenizer", text: "_Text", then: "Callable[[Exchange], None]"
    ) -> "_Later | None":
        if self._encoder is None or self._pending_chars + text.length > MAX_PENDING_CHARS:
            exchange.encoded = False
            self._count("busy")
            return None
        self._pending_chars += text.length
        began = time.perf_counter()

        def encoded(done: "asyncio.Future[list[bytes]]") -> None:
            self._pending_chars -= text.length
            ids: bytes | None = None
            if not done.cancelled() and done.exception() is None:
                self._keep(tokenizer, text.ids, text.missing, done.result(), began)
                ids = tokenizer.joined(text.pieces, text.ids, special=text.special)
            if not exchange.ended:
                self._by_ids(exchange, ids)
                then(exchange)

        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._encoder, tokenizer.encode_pieces, text.missing).add_done_callback(encoded)
        return _LATER

    def _count(self, how: str) -> None:
        counts = self._gateway.metrics.prompt_keys
        counts[how] = counts.get(how, 0) + 1


def _read_tokenizers(settings: "RouterSettings") -> "dict[str, PromptTokenizer]":
    if not settings.tokenizers:
        return {}
    try:
        from tonnage_router.adapters.tokenizer import PromptTokenizer
    except ImportError as error:
        raise BadInputError("tokenizers need the router extra: pip install 'tonnage[router]'") from error
    size = settings.tokenizer_cache_bytes
    return {model: PromptTokenizer(directory, size) for model, directory in settings.tokenizers.items()}


def _only_prompt(prompt: object) -> object:
    """The prompt of a completion: text, or a list of ids; None for a batch."""
    if type(prompt) is list and len(prompt) == 1 and type(prompt[0]) is not int:
        prompt = prompt[0]
    if type(prompt) is list:
        return prompt if prompt and type(prompt[0]) is int else None
    return prompt


class _Text:
    """A text that is being encoded: its pieces, the ids known so far, and what is missing."""

    __slots__ = ("ids", "length", "missing", "pieces", "special")

    def __init__(
        self, pieces: list[str], ids: dict[str, bytes], missing: list[str], length: int, special: bool
    ) -> None:
        self.pieces, self.ids, self.missing, self.length, self.special = pieces, ids, missing, length, special


class _Later:
    """The type of `_LATER`."""


_LATER = _Later()
