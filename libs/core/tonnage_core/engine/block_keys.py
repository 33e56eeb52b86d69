"""Keys of blocks that hold generated tokens: chained from the prompt's last key, or private ones."""

import struct

from tonnage_core.engine.sequence import Sequence
from tonnage_core.engine.types import BlockKey, EngineRequest
from tonnage_core.prefix_index.block_hash import chain, seed_hash


class BlockKeys:
    """Extends sequences' keys as tokens are generated. `model` tags the chain's seed."""

    def __init__(self, model: str, block_size: int) -> None:
        self._model = model
        self._block_size = block_size
        self._private = 0

    def extend(self, sequence: Sequence, full_blocks: int) -> None:
        """Give every full block up to `full_blocks` a key."""
        for index in range(sequence.known_keys, full_blocks):
            sequence.own_keys.append(self._next(sequence, index))

    def _next(self, sequence: Sequence, index: int) -> BlockKey:
        request = sequence.request
        parent = self._parent(sequence, index)
        if request.output_token is None or not isinstance(parent, bytes):
            self._private -= 1
            return self._private
        first = index * self._block_size
        tokens = [_token(sequence, place) for place in range(first, first + self._block_size)]
        return chain(parent, struct.pack(f"<{len(tokens)}I", *tokens))

    def _parent(self, sequence: Sequence, index: int) -> BlockKey:
        request = sequence.request
        if sequence.own_keys:
            return sequence.own_keys[-1]
        if index:
            return request.block_hashes[index - 1]
        return seed_hash(self._model, request.adapter, request.salt)


def _token(sequence: Sequence, place: int) -> int:
    request = sequence.request
    if place >= request.prompt_tokens:
        assert request.output_token is not None
        return request.output_token(sequence.sample, place - request.prompt_tokens)
    return request.tail[place - request.prompt_tokens + len(request.tail)]


def checks_out(request: EngineRequest, block_size: int) -> bool:
    """The request's keys and tail match its prompt length."""
    full, rest = divmod(request.prompt_tokens, block_size)
    tail_fits = len(request.tail) == rest or (request.output_token is None and not request.tail)
    return len(request.block_hashes) == full and tail_fits
