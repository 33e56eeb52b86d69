"""One rank of the collectives probe: `FOLDER WORLD RANK`; rank 0 prints a JSON line a point."""

import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as distributed

_CUDA: Any = torch.cuda
SIZES = (8 << 10, 512 << 10, 4 << 20, 64 << 20, 512 << 20)
ROUNDS = 20


def timed(call: Callable[[], object]) -> float:
    """Median microseconds a call over `ROUNDS`, after five to warm up."""
    for _ in range(5):
        call()
    begin, end = ([_CUDA.Event(enable_timing=True) for _ in range(ROUNDS)] for _ in range(2))
    for first, last in zip(begin, end, strict=True):
        first.record()
        call()
        last.record()
    torch.cuda.synchronize()
    return float(statistics.median(a.elapsed_time(b) * 1e3 for a, b in zip(begin, end, strict=True)))


def measure(rank: int, world: int, nbytes: int) -> list[dict[str, float | str]]:
    """All-reduce, all-gather, reduce-scatter and all-to-all of `nbytes`; whole numbers, so that sums are exact."""
    device = torch.device("cuda", rank)
    count = nbytes // 2 // world * world
    part = count // world
    source = (torch.arange(count, device=device) % 7 + rank).to(torch.bfloat16)
    base = torch.arange(count, device=device) % 7
    total = (base * world + world * (world - 1) // 2).to(torch.bfloat16)
    reduced = source.clone()
    distributed.all_reduce(reduced)
    gathered = torch.empty(count, dtype=torch.bfloat16, device=device)
    mine = torch.full((part,), float(rank), dtype=torch.bfloat16, device=device)
    distributed.all_gather_into_tensor(gathered, mine)
    scattered = torch.empty(part, dtype=torch.bfloat16, device=device)
    distributed.reduce_scatter_tensor(scattered, source)
    swapped = torch.empty_like(source)
    distributed.all_to_all_single(swapped, source)
    ranks = torch.arange(world, device=device).repeat_interleave(part)
    lane = slice(rank * part, (rank + 1) * part)
    wrong = {
        "allreduce": int((reduced != total).sum()),
        "allgather": int((gathered != ranks.to(torch.bfloat16)).sum()),
        "reducescatter": int((scattered != total[lane]).sum()),
        "alltoall": int((swapped != (base[lane].repeat(world) + ranks).to(torch.bfloat16)).sum()),
    }
    calls: dict[str, Callable[[], object]] = {
        "allreduce": lambda: distributed.all_reduce(reduced),
        "allgather": lambda: distributed.all_gather_into_tensor(gathered, mine),
        "reducescatter": lambda: distributed.reduce_scatter_tensor(scattered, source),
        "alltoall": lambda: distributed.all_to_all_single(swapped, source),
    }
    return [{"name": name, "bytes": count * 2, "us": timed(call), "wrong": wrong[name]} for name, call in calls.items()]


def main(folder: str, world: int, rank: int) -> None:
    """Join the group through a file, measure every size, leave."""
    torch.cuda.set_device(rank)
    distributed.init_process_group(
        "nccl",
        init_method=f"file://{folder}/rendezvous",
        world_size=world,
        rank=rank,
        device_id=torch.device("cuda", rank),
    )
    for nbytes in SIZES:
        for point in measure(rank, world, nbytes):
            if rank == 0:
                sys.stdout.write(json.dumps(point) + "\n")
    sys.stdout.flush()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
