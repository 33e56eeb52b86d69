"""The worker of `gpu_load.py`: makes checkpoints and times variants; every event is one JSON line on stdout."""

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from baselines import (
    drop_cache,
    fastsafetensors_load,
    h2d_alone,
    plain_ring,
    safetensors_load,
    total_bytes,
    warm_cache,
    weight_files,
)
from checkpoint import make

import tonnage_coldstart
from tonnage_coldstart.errors import ContentMismatchError
from tonnage_coldstart.loader import lanes
from tonnage_coldstart.loader.device_check import device_check
from tonnage_coldstart.loader.loading import LoadOptions
from tonnage_core.coldstart.manifest_digest import manifest_digest

GIB = 1 << 30
MIB = 1 << 20
Variant = Callable[[Path, str], object]


def emit(event: str, **more: Any) -> None:
    print(json.dumps({"event": event, "at": time.time(), **more}), flush=True)


def ours(
    shape: str, *, verify: bool = True, direct: bool = False, drop: bool = False, on_host: bool = False
) -> Variant:
    """`shape`: readers, MiB of a slab, spare slabs, as `16_8_4`. `on_host`: checked by the processor throughout."""
    threads, slab, spare = map(int, shape.split("_"))
    options = LoadOptions(
        threads=threads,
        verify=verify,
        slab_bytes=slab * MIB,
        spare_slabs=spare,
        direct=direct,
        drop_behind=drop,
    )

    def run(folder: Path, device: str) -> object:
        lanes.new_check = (lambda stream, chunk_bytes: None) if on_host else device_check
        return tonnage_coldstart.load(folder, device, options)

    return run


def reads(shape: str, *, copy: bool, direct: bool = False) -> Variant:
    threads, slab = map(int, shape.split("_"))
    return lambda folder, device: plain_ring(folder, device, threads, copy=copy, direct=direct, slab_bytes=slab * MIB)


def variants(shapes: list[str]) -> dict[str, Variant]:
    """Every variant by name: `kind_threads_slabMiB_spare` of ours, `kind_threads_slabMiB` of what it is beside."""
    found: dict[str, Variant] = {"safetensors": safetensors_load, "fastsafetensors": fastsafetensors_load}
    for shape in shapes:
        found[f"tonnage_verified_{shape}"] = ours(shape)
        found[f"tonnage_unchecked_{shape}"] = ours(shape, verify=False)
        found[f"tonnage_hostchecked_{shape}"] = ours(shape, on_host=True)
        found[f"tonnage_direct_{shape}"] = ours(shape, direct=True)
        found[f"tonnage_dropped_{shape}"] = ours(shape, drop=True)
        plain = shape.rpartition("_")[0]
        found[f"plain_ring_{plain}"] = reads(plain, copy=True)
        found[f"pread_alone_{plain}"] = reads(plain, copy=False)
        found[f"disk_direct_{plain}"] = reads(plain, copy=False, direct=True)
    return found


def byte_equal(folder: Path, device: str) -> bool:
    """Every tensor of `load` against safetensors' own reader, on the device, shard by shard."""
    from safetensors.torch import load_file

    for path in weight_files(folder):
        mine = tonnage_coldstart.load(path, device, LoadOptions())
        theirs = load_file(path, device=device)
        if mine.keys() != theirs.keys() or not mine.report["verified"]:
            return False
        if not all(torch.equal(mine[name].view(torch.int16), theirs[name].view(torch.int16)) for name in theirs):
            return False
    return True


def finds_damage(folder: Path, device: str) -> bool:
    """Whether a load names the one chunk of a shard whose checksum the manifest has wrong."""
    document = json.loads((folder / "tonnage-manifest.json").read_bytes())
    shard = next(file for file in document["files"] if file["name"].endswith(".safetensors"))
    chunk = len(shard["crc32c"]) // 2
    shard["crc32c"][chunk] ^= 1 << 17
    document["digest"] = manifest_digest(document)
    with tempfile.TemporaryDirectory() as made:
        damaged = Path(made)
        (damaged / shard["name"]).symlink_to((folder / shard["name"]).resolve())
        (damaged / "tonnage-manifest.json").write_text(json.dumps(document))
        try:
            tonnage_coldstart.load(damaged, device, LoadOptions())
        except ContentMismatchError as error:
            return f"chunk {chunk}" in str(error)
    return False


def timed(task: dict[str, Any], known: dict[str, Variant], folder: Path, device: str, size: int) -> None:
    """One measurement: the variant is run `warmups` times untimed, then once."""
    name = task["variant"]
    for number in range(task["warmups"] + 1):
        if task["cold"]:
            drop_cache(folder)
        gc.collect()
        before, started = os.times(), time.perf_counter()
        held = known[name](folder, device)
        taken, after = time.perf_counter() - started, os.times()
        del held
        cpu = after.user + after.system - before.user - before.system
        if number == task["warmups"]:
            emit("measured", **task, seconds=taken, gbps=size / taken / 1e9, cpu_s=cpu)
    if name == "fastsafetensors" and device.startswith("cuda"):
        torch.cuda.empty_cache()


def perform(task: dict[str, Any], given: dict[str, Any], known: dict[str, Variant]) -> None:
    folder, device = Path(task.get("folder", ".")), given["device"]
    kind = task["task"]
    if kind == "make":
        shape = {name: task[name] for name in ("total_bytes", "shards", "hidden")}
        make(folder, **shape, on_shard=lambda name: emit("wrote", file=name))
        emit("made", bytes=total_bytes(folder), folder=str(folder))
    elif kind == "h2d":
        emit("h2d", gbps=h2d_alone(device, min(GIB, task["bytes"])))
    elif kind == "warm":
        warm_cache(folder)
        emit("warmed")
    elif kind == "equal":
        emit("byte_equal", equal=byte_equal(folder, device), damage_found=finds_damage(folder, device))
    elif kind == "first":
        started = time.perf_counter()
        loaded = tonnage_coldstart.load(folder, device, LoadOptions())
        taken = time.perf_counter() - started
        stream = torch.cuda.Stream() if device.startswith("cuda") else None
        emit("first_load", report=loaded.report, wall_s=taken, device_check=device_check(stream, 8 * MIB) is not None)
    else:
        timed(task, known, folder, device, total_bytes(folder))


def main() -> None:
    given = json.loads(sys.argv[1])
    known = variants(given["shapes"])
    gpu = torch.cuda.get_device_name() if given["device"].startswith("cuda") else None
    emit("ready", gpu=gpu, torch=torch.__version__, python=sys.version.split()[0], cores=os.cpu_count())
    for line in sys.stdin:
        task = json.loads(line)
        try:
            perform(task, given, known)
        except ImportError as error:
            emit("skipped", **task, why=str(error))
        except Exception as error:  # noqa: BLE001 - one variant's failure is a result, the others go on
            emit("failed", **task, why=f"{type(error).__name__}: {error}"[:300])
        emit("done")


if __name__ == "__main__":
    main()
