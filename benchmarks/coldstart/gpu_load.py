"""Weights to a GPU: `tonnage_coldstart.load` beside a plain pinned ring, safetensors and fastsafetensors.

Rounds are interleaved, each method once a round in a new order; the median and the range of GB/s go into one JSON
document. Runs with torch, safetensors and crc32c alone.
"""

import argparse
import gc
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
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
from tonnage_coldstart.loader.loading import LoadOptions

GIB = 1 << 30


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=16.0, help="checkpoint size")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[8, 16], help="readers to try")
    parser.add_argument("--folder", type=Path, help="where the checkpoint lies or is made; a temporary one by default")
    parser.add_argument("--skip-cold", action="store_true")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def warm_methods(folder: Path, device: str, threads: list[int]) -> dict[str, Callable[[], object]]:
    methods: dict[str, Callable[[], object]] = {"safetensors": lambda: safetensors_load(folder, device)}
    try:
        import fastsafetensors  # noqa: F401 - only whether it is there

        methods["fastsafetensors"] = lambda: fastsafetensors_load(folder, device)
    except ImportError:
        pass
    for count in threads:
        methods[f"plain_ring_{count}"] = lambda count=count: plain_ring(folder, device, count)
        methods[f"pread_alone_{count}"] = lambda count=count: plain_ring(folder, device, count, copy=False)
        for name, verify in (("verified", True), ("unchecked", False)):
            options = LoadOptions(threads=count, verify=verify, ring=True)
            methods[f"tonnage_{name}_{count}"] = lambda o=options: tonnage_coldstart.load(folder, device, o)
    return methods


def cold_methods(folder: Path, device: str) -> dict[str, Callable[[], object]]:
    methods: dict[str, Callable[[], object]] = {}
    for count in (1, 4, 8, 16):
        methods[f"disk_alone_{count}"] = lambda count=count: plain_ring(folder, device, count, copy=False)
        methods[f"disk_direct_{count}"] = lambda count=count: plain_ring(folder, device, count, copy=False, direct=True)
    for count in (8, 16):
        for direct in (False, True):
            options = LoadOptions(threads=count, direct=direct, ring=True)
            name = f"tonnage_verified_{'direct' if direct else 'buffered'}_{count}"
            methods[name] = lambda o=options: tonnage_coldstart.load(folder, device, o)
    methods["safetensors"] = lambda: safetensors_load(folder, device)
    return methods


def measure(
    methods: dict[str, Callable[[], object]], rounds: int, size: int, before: Callable[[], None]
) -> dict[str, dict[str, Any]]:
    """GB/s of each method: the first round warms rings and allocators and is left out."""
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    rng = Random(0)
    for number in range(rounds + 1):
        order = sorted(methods)
        rng.shuffle(order)
        for name in order:
            before()
            started = time.perf_counter()
            held = methods[name]()
            taken = time.perf_counter() - started
            del held
            gc.collect()
            if number:
                seconds[name].append(taken)
    return {name: _figures(values, size) for name, values in seconds.items()}


def _figures(seconds: list[float], size: int) -> dict[str, Any]:
    rates = sorted(size / one / 1e9 for one in seconds)
    return {"gbps": statistics.median(rates), "gbps_min": rates[0], "gbps_max": rates[-1], "seconds": seconds}


def byte_equal(folder: Path, device: str) -> bool:
    """Every tensor of `load` against safetensors' own reader, on the device, shard by shard."""
    for path in weight_files(folder):
        ours = tonnage_coldstart.load(path, device, LoadOptions(ring=True))
        from safetensors.torch import load_file

        theirs = load_file(path, device=device)
        if ours.keys() != theirs.keys() or not ours.report["verified"]:
            return False
        if not all(torch.equal(ours[name].view(torch.int16), theirs[name].view(torch.int16)) for name in theirs):
            return False
    return True


def context(device: str) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if device.startswith("cuda") else None
    return {"gpu": gpu, "torch": torch.__version__, "python": platform.python_version(), "cores": os.cpu_count()}


def run(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    started = time.perf_counter()
    make(folder, total_bytes=int(given.gib * GIB), shards=given.shards, hidden=given.hidden)
    size = total_bytes(folder)
    document: dict[str, Any] = {
        "schema": "tonnage.bench_gpu_load/1",
        "version": 1,
        "bytes": size,
        "shards": given.shards,
        "rounds": given.rounds,
        "context": context(given.device),
        "made_s": time.perf_counter() - started,
        "h2d_pinned_gbps": h2d_alone(given.device, min(GIB, size)),
    }
    warm_cache(folder)
    document["byte_equal"] = byte_equal(folder, given.device)
    first = time.perf_counter()
    document["first_load"] = tonnage_coldstart.load(folder, given.device, LoadOptions(threads=16, ring=True)).report
    document["first_load"]["wall_s"] = time.perf_counter() - first
    document["warm"] = measure(
        warm_methods(folder, given.device, given.threads), given.rounds, size, before=lambda: None
    )
    if not given.skip_cold:
        cold = cold_methods(folder, given.device)
        document["cold"] = measure(cold, max(1, given.rounds // 2), size, before=lambda: drop_cache(folder))
    return document


def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory() as made:
        document = run(given, given.folder or Path(made) / "checkpoint")
    for part in ("warm", "cold"):
        for name, figures in sorted(document.get(part, {}).items(), key=lambda one: -one[1]["gbps"]):
            print(
                f"{part:5} {name:32} {figures['gbps']:7.2f} GB/s  ({figures['gbps_min']:.2f}-{figures['gbps_max']:.2f})"
            )
    print(f"pinned H2D alone {document['h2d_pinned_gbps']:.1f} GB/s, byte-equal {document['byte_equal']}")
    if given.out:
        given.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
