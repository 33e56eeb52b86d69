"""Block keys straight from a trace's block ids, without building a single token.

A trace block of, say, 512 tokens holds many engine blocks. Each engine block's key is the chain of trace blocks up to
it and its place inside, as integers that are made when they are looked at: a waiting request of 100,000 tokens costs a
few hundred numbers, not thousands of hashes.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import chain as flatten
from itertools import islice
from typing import overload

from tonnage_core.engine.errors import BadEngineConfigError
from tonnage_core.prefix_index.block_hash import chain
from tonnage_core.traces import TraceRequest

_KEY_BYTES = 7


class TraceKeys(Sequence[int]):
    """Keys of the first `count` engine blocks, `per_block` of them in every trace block of the chain."""

    __slots__ = ("_bases", "_count", "_per_block")

    def __init__(self, chain_digests: Sequence[bytes], per_block: int, count: int) -> None:
        self._bases = [int.from_bytes(digest[:_KEY_BYTES], "little") * per_block for digest in chain_digests]
        self._per_block = per_block
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        per_block = self._per_block
        return islice(flatten.from_iterable(range(base, base + per_block) for base in self._bases), self._count)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        if isinstance(place, slice):
            return [self[index] for index in range(*place.indices(self._count))]
        if not -self._count <= place < self._count:
            raise IndexError(f"block {place} of {self._count}")
        block, rest = divmod(place % self._count, self._per_block)
        return self._bases[block] + rest


def trace_chain(request: TraceRequest, seed: bytes) -> list[bytes]:
    """The chained hash of every trace block of the prompt, the partial last one included."""
    digests, parent = [], seed
    for hash_id in request.hash_ids:
        parent = chain(parent, struct.pack("<Q", hash_id))
        digests.append(parent)
    return digests


def trace_keys(request: TraceRequest, digests: Sequence[bytes], block_size: int) -> TraceKeys:
    """Keys of the prompt's full engine blocks; `digests` are its `trace_chain`."""
    if request.block_tokens % block_size:
        raise BadEngineConfigError(
            f"block_size {block_size} must divide the trace's blocks of {request.block_tokens} tokens"
        )
    return TraceKeys(digests, request.block_tokens // block_size, request.input_length // block_size)
