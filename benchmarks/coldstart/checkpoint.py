"""A sharded bf16 checkpoint of random bytes with the shapes of a language model, an index and a sealed manifest."""

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from crc32c import crc32c

from tonnage_core.coldstart.manifest_digest import manifest_digest

CHUNK_BYTES = 8 << 20
BLOCK_BYTES = 32 << 20


def layer_shapes(hidden: int) -> list[tuple[str, tuple[int, ...]]]:
    """One decoder layer, grouped-query attention and a gated MLP, as in Llama 3.1 (intermediate 3.5 x hidden)."""
    inner, kv = hidden * 7 // 2, hidden // 4
    return [
        ("q_proj", (hidden, hidden)),
        ("k_proj", (kv, hidden)),
        ("v_proj", (kv, hidden)),
        ("o_proj", (hidden, hidden)),
        ("gate_proj", (inner, hidden)),
        ("up_proj", (inner, hidden)),
        ("down_proj", (hidden, inner)),
        ("input_norm", (hidden,)),
        ("post_norm", (hidden,)),
    ]


def make(
    folder: Path,
    *,
    total_bytes: int,
    shards: int,
    hidden: int,
    seed: int = 0,
    on_shard: Callable[[str], None] = lambda name: None,
) -> Path:
    """Write it unless it is there; returns the folder. `on_shard` hears of each file that is written."""
    done = folder / "tonnage-manifest.json"
    if done.is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"model-{shard + 1:05d}-of-{shards:05d}.safetensors" for shard in range(shards)]
    held = [list(_tensors(shard, total_bytes // shards, hidden)) for shard in range(shards)]
    weight_map = {tensor: name for name, tensors in zip(names, held, strict=True) for tensor, _ in tensors}
    files = []
    with ThreadPoolExecutor(max_workers=min(shards, os.cpu_count() or 1)) as pool:
        seeds = range(seed * 1000, seed * 1000 + shards)
        for described in pool.map(_write, (folder / name for name in names), held, seeds):
            files.append(described)
            on_shard(str(described["name"]))
    index = json.dumps({"weight_map": weight_map}).encode()
    (folder / "model.safetensors.index.json").write_bytes(index)
    files.append(_described("model.safetensors.index.json", len(index), [crc32c(index)]))
    document = {"schema": "tonnage.manifest/1", "chunk_bytes": CHUNK_BYTES, "revision": "bench", "files": files}
    document["digest"] = manifest_digest(document)
    done.write_text(json.dumps(document))
    return folder


def _tensors(shard: int, wanted_bytes: int, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    held, layer = 0, 0
    while held < wanted_bytes:
        for name, shape in layer_shapes(hidden):
            yield f"shard{shard}.layers.{layer}.{name}.weight", shape
            held += _bytes(shape)
        layer += 1


def _bytes(shape: tuple[int, ...]) -> int:
    size = 2
    for one in shape:
        size *= one
    return size


def _write(path: Path, tensors: list[tuple[str, tuple[int, ...]]], seed: int) -> dict[str, object]:
    header, at = {}, 0
    for name, shape in tensors:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + _bytes(shape)]}
        at += _bytes(shape)
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    crcs, crc, room = [], 0, CHUNK_BYTES
    with path.open("wb") as file:
        for piece in _pieces(struct.pack("<Q", len(raw)) + raw, at, seed):
            file.write(piece)
            left = piece
            while left:
                part, left = left[:room], left[room:]
                crc, room = crc32c(part, crc), room - len(part)
                if room == 0:
                    crcs.append(crc)
                    crc, room = 0, CHUNK_BYTES
        size = file.tell()
    if room < CHUNK_BYTES:
        crcs.append(crc)
    return _described(path.name, size, crcs)


def _pieces(head: bytes, body_bytes: int, seed: int) -> Iterator[memoryview]:
    """The header, then one random block again and again, each time from another place, so that no chunk repeats."""
    yield memoryview(head)
    rng = Random(seed)
    block = memoryview(hashlib.shake_128(str(seed).encode()).digest(BLOCK_BYTES))
    left = body_bytes
    while left:
        start = rng.randrange(0, BLOCK_BYTES // 2)
        piece = block[start : start + min(left, BLOCK_BYTES // 2)]
        yield piece
        left -= len(piece)


def _described(name: str, size: int, crcs: list[int]) -> dict[str, object]:
    return {"name": name, "size": size, "crc32c": crcs}
