"""`load` of one tensor-parallel rank: its part of every tensor, verified together with the other ranks."""

import json
import os
import time
from functools import partial
from pathlib import Path

import torch

from tonnage_coldstart.errors import SourceError
from tonnage_coldstart.loader.lanes import Target, new_stream
from tonnage_coldstart.loader.loading import (
    Loaded,
    LoadOptions,
    allocate,
    borrowed_ring,
    default_threads,
    dtype_of,
    free,
    place_of,
    report,
    require_dtypes,
)
from tonnage_coldstart.loader.ring import Ring
from tonnage_coldstart.loader.shard_lanes import ShardLanes
from tonnage_coldstart.loader.weights import Weights, open_weights
from tonnage_core.coldstart.shard_layout import ShardArena
from tonnage_core.coldstart.shard_plan import TensorParallel, kv_heads_of


def load_shard(path: Path, device: str, tp_rank: int, tp_size: int, options: LoadOptions) -> Loaded:
    """What rank `tp_rank` of `tp_size` keeps of the model in `path`, on `device`; the cut is that of `shard_plan`.

    The rank reads the bytes it keeps and, of the chunks that no rank keeps whole, its share for the check: the report's
    `verified` speaks for the chunks this rank checks, all ranks together check every chunk. A model is good when every
    rank's load returned. Raises `TonnageError`; after an error nothing of the model is left on the device.
    """
    started = time.perf_counter()
    place = place_of(device)
    weights = open_weights(path, direct=False)
    try:
        require_dtypes(weights)
        tp = TensorParallel(tp_rank, tp_size, _kv_heads(path))
        shards = [ShardArena(file.arena.header, tp) for file in weights.files]
        planned = time.perf_counter()
        arenas = allocate([shard.size_bytes for shard in shards], place)
        try:
            ring, read_bytes = _fill(weights, shards, arenas, place, options)
            tensors = _tensors(weights, shards, arenas)
        except BaseException:
            free(arenas)
            raise
    finally:
        weights.close()
    ended = time.perf_counter()
    phases = {"plan_s": planned - started, "fetch_s": None, "verify_s": None, "h2d_s": ended - planned}
    document = report(path, weights, options, ring, phases, ended - started)
    kept_bytes = sum(shard.kept_bytes for shard in shards)
    figures = {"bytes": kept_bytes, "source_bytes": read_bytes, "gbps": kept_bytes / (ended - started) / 1e9}
    return Loaded(tensors, document | figures | {"tp_rank": tp_rank, "tp_size": tp_size})


def _fill(
    weights: Weights, shards: list[ShardArena], arenas: list[torch.Tensor], place: torch.device, options: LoadOptions
) -> tuple[Ring, int]:
    stream = new_stream(place) if place.type == "cuda" else None
    lanes = ShardLanes(
        weights,
        shards,
        Target(arenas, stream),
        verify=options.verify,
        slab_bytes=options.slab_for(place),
        drop_behind=options.drop_behind,
    )
    threads = max(1, min(options.threads or default_threads(), -(-weights.size_bytes // weights.chunk_bytes)))
    try:
        with borrowed_ring(threads, options.spare_slabs, options.slab_for(place), place) as ring:
            lanes.run([partial(ShardLanes.through_shards, ring=ring)] * threads)
    finally:
        lanes.close()
    return ring, lanes.read_bytes


def _tensors(weights: Weights, shards: list[ShardArena], arenas: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {}
    for file, shard, arena in zip(weights.files, shards, arenas, strict=True):
        for part, offset in zip(shard.parts, shard.offsets, strict=True):
            flat = arena[offset : offset + part.runs.size_bytes]
            found[part.tensor.name] = flat.view(dtype_of(file.name, part.tensor)).view(part.shape)
    return found


def _kv_heads(path: Path) -> int | None:
    config = (path if path.is_dir() else path.parent) / "config.json"
    if not os.path.isfile(config):
        return None
    try:
        document = json.loads(config.read_bytes())
    except ValueError as error:
        raise SourceError(str(path), f"not JSON: {str(error)[:120]}", file=config.name) from error
    return kv_heads_of(document) if isinstance(document, dict) else None
