"""vLLM's KV-event batches, msgpack, into the events that core follows.

Batches are arrays `[time, events, data_parallel_rank]`. Events are maps with their kind under `type` (0.2x on) or
arrays that begin with it (before); fields have had the same names and order throughout, new ones at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import msgspec

from tonnage_core.prefix_index.kv_events import BlocksRemoved, BlocksStored, CacheCleared, EngineHash, KvEvent
from tonnage_router.errors import KvEventError

STORED, REMOVED, CLEARED = "BlockStored", "BlockRemoved", "AllBlocksCleared"
_FIELDS = {
    STORED: (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
    ),
    REMOVED: ("block_hashes", "medium", "group_idx"),
    CLEARED: (),
}
ON_GPU = (None, "GPU")


@dataclass(frozen=True, slots=True)
class Batch:
    """What one engine step did to the cache. `malformed` events could not be read, or are of an unknown kind."""

    events: tuple[KvEvent, ...]
    malformed: int
    rank: int | None


def decode(payload: bytes) -> Batch:
    """One batch; `KvEventError` when it is none. An event that cannot be read does not cost the others."""
    try:
        document = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise KvEventError(f"a KV-event batch is not msgpack: {error}") from error
    if isinstance(document, dict):
        document = [document.get("ts"), document.get("events"), document.get("data_parallel_rank")]
    if type(document) is not list or len(document) < 2 or type(document[1]) is not list:
        raise KvEventError("a KV-event batch is an array of a time, events and a rank")
    found = [_event(item) for item in document[1]]
    events = tuple(event for event in found if event is not None)
    rank = document[2] if len(document) > 2 and type(document[2]) is int else None
    return Batch(events, len(found) - len(events), rank)


def _event(item: object) -> KvEvent | None:
    kind, fields = _named(item)
    if kind == STORED:
        return _stored(fields)
    if kind == REMOVED:
        hashes = fields.get("block_hashes")
        return BlocksRemoved(hashes, _int(fields.get("group_idx"))) if _are_hashes(hashes) else None
    return CacheCleared() if kind == CLEARED else None


def _named(item: object) -> tuple[object, dict[str, Any]]:
    """The event's kind, and its fields by name."""
    if isinstance(item, dict):
        return item.get("type"), item
    if type(item) is list and item and type(item[0]) is str and item[0] in _FIELDS:
        return item[0], dict(zip(_FIELDS[item[0]], item[1:], strict=False))
    return None, {}


def _stored(fields: dict[str, Any]) -> BlocksStored | None:
    hashes, parent, tokens = (fields.get(name) for name in ("block_hashes", "parent_block_hash", "token_ids"))
    size, adapter, extra = fields.get("block_size"), fields.get("lora_name"), fields.get("extra_keys")
    if not _are_hashes(hashes) or type(tokens) is not list or type(size) is not int:
        return None
    if parent is not None and type(parent) not in (bytes, int):
        return None
    if adapter is not None and type(adapter) is not str:
        return None
    if extra is not None and not _are_keys(extra):
        return None
    kind = fields.get("kv_cache_spec_kind")
    return BlocksStored(
        hashes,
        parent,
        tokens,
        size,
        adapter=adapter,
        adapter_unnamed=adapter is None and fields.get("lora_id") is not None,
        extra=extra,
        group=_int(fields.get("group_idx")),
        kind=kind if type(kind) is str else None,
        on_gpu=fields.get("medium") in ON_GPU,
    )


def _are_hashes(value: object) -> TypeGuard[list[EngineHash]]:
    return type(value) is list and all(type(name) in (bytes, int) for name in value)


def _are_keys(value: object) -> bool:
    return type(value) is list and all(keys is None or isinstance(keys, Sequence) for keys in value)


def _int(value: object) -> int | None:
    return value if type(value) is int else None
