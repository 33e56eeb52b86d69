"""Weights to several GPUs: each rank reads only its bytes, beside one rank reading all and broadcasting.

One process a rank; a barrier before and after, the slowest rank's time counts. The result is written after every
measurement; a watchdog ends a run that hangs. Needs torch, numpy and crc32c alone.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from baselines import total_bytes, warm_cache
from checkpoint import make

import tonnage_coldstart
from tonnage_coldstart.loader.loading import LoadOptions
from tonnage_core.coldstart.safetensors_header import Tensor
from tonnage_core.coldstart.shard_plan import Part, TensorParallel, part_of

GIB, MIB = 1 << 30, 1 << 20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--gib", type=float, default=16.0)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=16, help="readers a rank")
    parser.add_argument("--slab", type=int, default=4, help="MiB of a slab")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--limit-s", type=float, default=300.0)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


class Rank:
    """One process's side of every variant."""

    def __init__(self, given: argparse.Namespace, folder: Path, rank: int) -> None:
        self.given, self.folder, self.rank, self.size = given, folder, rank, given.ranks
        self.device = f"cuda:{rank}" if given.device == "cuda" else "cpu"
        self.tp = TensorParallel(rank, self.size)

    def options(self, *, verify: bool) -> LoadOptions:
        given = self.given
        return LoadOptions(threads=given.threads, slab_bytes=given.slab * MIB, verify=verify)

    def shards(self, *, verify: bool) -> dict[str, torch.Tensor]:
        """Each rank reads its bytes."""
        where = {"tp_rank": self.rank, "tp_size": self.size}
        return tonnage_coldstart.load(self.folder, self.device, self.options(verify=verify), **where)

    def everything(self, *, verify: bool) -> dict[str, torch.Tensor]:
        """Each rank reads all and keeps its part."""
        return self.cut(tonnage_coldstart.load(self.folder, self.device, self.options(verify=verify)))

    def broadcast(self, *, verify: bool) -> dict[str, torch.Tensor]:
        """Rank 0 reads all; each tensor is broadcast, each rank keeps its part."""
        loaded = tonnage_coldstart.load(self.folder, self.device, self.options(verify=verify)) if not self.rank else {}
        shapes = [[(name, tuple(tensor.shape)) for name, tensor in loaded.items()]]
        dist.broadcast_object_list(shapes, src=0)
        found = {}
        for name, shape in shapes[0]:
            whole = loaded[name] if not self.rank else torch.empty(shape, dtype=torch.bfloat16, device=self.device)
            dist.broadcast(whole, src=0)
            found |= self.cut({name: whole})
        return found

    def cut(self, whole: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = {}
        for name, tensor in whole.items():
            part: Part = part_of(Tensor(name, "BF16", tuple(tensor.shape), 0, tensor.nbytes), self.tp)
            cut = tensor if part.dim is None else tensor.narrow(part.dim, part.begin, part.end - part.begin)
            found[name] = cut.clone()
        return found

    def timed(self, variant: Callable[[], dict[str, torch.Tensor]]) -> tuple[float, dict[str, torch.Tensor]]:
        self.together()
        started = time.perf_counter()
        held = variant()
        self.together()
        return time.perf_counter() - started, held

    def together(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)
        dist.barrier()


def variants(one: Rank) -> dict[str, Callable[[], dict[str, torch.Tensor]]]:
    return {
        f"{name}_{'verified' if verify else 'unchecked'}": lambda f=function, v=verify: f(verify=v)
        for name, function in (("shards", one.shards), ("broadcast", one.broadcast), ("everything", one.everything))
        for verify in (True, False)
    }


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    if one.keys() != other.keys():
        return False
    return all(torch.equal(one[name].view(torch.int16), other[name].view(torch.int16)) for name in one)


def work(rank: int, given: argparse.Namespace, folder: Path, meeting: str) -> None:
    one = Rank(given, folder, rank)
    if given.device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if given.device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=given.ranks)
    document = described(given, folder, one) if rank == 0 else {}
    mine, theirs = one.shards(verify=True), one.everything(verify=True)
    equal: list[Any] = [None] * given.ranks
    dist.all_gather_object(equal, (same(mine, theirs), mine.report["source_bytes"], mine.report["bytes"]))
    document |= {"byte_equal": all(item[0] for item in equal), "read_bytes": [item[1] for item in equal]}
    document |= {"kept_bytes": [item[2] for item in equal]}
    del mine, theirs
    seconds: dict[str, list[float]] = {}
    for number in range(given.rounds + 1):
        for name, variant in variants(one).items():
            taken, held = one.timed(variant)
            del held
            if number:
                seconds.setdefault(name, []).append(taken)
            if rank == 0:
                print(f"round {number} {name:22} {taken:.3f} s", flush=True)
                save(given, document, seconds)
    dist.destroy_process_group()


def described(given: argparse.Namespace, folder: Path, one: Rank) -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(rank) for rank in range(given.ranks)] if given.device == "cuda" else []
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()}
    return {
        "schema": "tonnage.bench_tp_load/1",
        "version": 1,
        "settings": settings,
        "context": {"gpus": gpus, "torch": torch.__version__, "cores": os.cpu_count()},
        "bytes": total_bytes(folder),
    }


def save(given: argparse.Namespace, document: dict[str, Any], seconds: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    figures = {
        name: {"seconds": seconds[name], "median_s": median, "model_gbps": document["bytes"] / median / 1e9}
        for name, median in medians.items()
    }
    ratios = {
        f"broadcast_to_shards_{kind}": medians[f"broadcast_{kind}"] / medians[f"shards_{kind}"]
        for kind in ("verified", "unchecked")
        if {f"broadcast_{kind}", f"shards_{kind}"} <= medians.keys()
    }
    if given.out:
        given.out.write_text(json.dumps(document | {"variants": figures, "ratios": ratios}, indent=1) + "\n")


def run(given: argparse.Namespace, folder: Path) -> None:
    started = time.monotonic()
    make(
        folder,
        total_bytes=int(given.gib * GIB),
        shards=given.shards,
        hidden=given.hidden,
        on_shard=lambda name: print(f"[{time.monotonic() - started:6.1f} s] wrote {name}", flush=True),
    )
    warm_cache(folder)
    print(f"[{time.monotonic() - started:6.1f} s] warm", flush=True)
    context = torch.multiprocessing.get_context("spawn")
    meeting = str(folder / "meeting")
    ranks = [context.Process(target=work, args=(rank, given, folder, meeting)) for rank in range(given.ranks)]
    for process in ranks:
        process.start()
    watchdog = threading.Timer(given.limit_s, lambda: [process.kill() for process in ranks])
    watchdog.daemon = True
    watchdog.start()
    for process in ranks:
        process.join()
    watchdog.cancel()
    Path(meeting).unlink(missing_ok=True)
    if any(process.exitcode for process in ranks):
        raise SystemExit(f"ranks ended with {[process.exitcode for process in ranks]}; what was measured is in --out")


def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory() as made:
        run(given, given.folder or Path(made) / "checkpoint")


if __name__ == "__main__":
    main()
