"""One rank of the collectives probe: `FOLDER WORLD RANK [host]`; rank 0 prints a JSON line a point.

NCCL's collectives, and for all-reduce the one-shot kernel over peer memory that serving engines use for small messages
(no NVLink multicast). Values are whole numbers, so that sums are exact. `host` rehearses over gloo.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as distributed

from tonnage_gpu_agent.probes.lifeline import end_with_parent

_CUDA: Any = torch.cuda
Call = Callable[[], object]
SIZES = tuple(sorted([512 << 10, *(1 << power for power in range(10, 31, 2))]))
"""1 KiB to 1 GiB in steps of four, and the 512 KiB of a decode batch of 32 rows of 8,192 bf16 values."""
HOST_SIZES = (1 << 10, 1 << 16)
ONE_SHOT_BYTES = 4 << 20
ROUNDS = 20


def timed(call: Call, host: bool) -> float:
    """Median microseconds a call over `ROUNDS`, after five to warm up. Counts are fixed: ranks must not disagree."""
    if host:
        begun = time.perf_counter()
        call()
        return (time.perf_counter() - begun) * 1e6
    for _ in range(5):
        call()
    begin, end = ([_CUDA.Event(enable_timing=True) for _ in range(ROUNDS)] for _ in range(2))
    for first, last in zip(begin, end, strict=True):
        first.record()
        call()
        last.record()
    torch.cuda.synchronize()
    return float(statistics.median(a.elapsed_time(b) * 1e3 for a, b in zip(begin, end, strict=True)))


def in_graph(call: Call, unroll: int) -> Call:
    """`unroll` calls captured; the result replays them all."""
    side = _CUDA.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(unroll):
            call()
    return graph.replay


class Collective:
    """The buffers and calls of one size on one rank."""

    def __init__(self, rank: int, world: int, nbytes: int, device: torch.device) -> None:
        count = nbytes // 2 // world * world
        part, self.rank, self.world, self.nbytes = count // world, rank, world, count * 2
        self.base = torch.arange(count, device=device) % 7
        self.source = (self.base + rank).to(torch.bfloat16)
        self.total = (self.base * world + world * (world - 1) // 2).to(torch.bfloat16)
        self.ranks = torch.arange(world, device=device).repeat_interleave(part)
        self.lane = slice(rank * part, (rank + 1) * part)
        self.reduced = self.source.clone()
        self.gathered = torch.empty_like(self.source)
        self.mine = torch.full((part,), float(rank), dtype=torch.bfloat16, device=device)
        self.scattered = torch.empty_like(self.mine)
        self.swapped = torch.empty_like(self.source)

    def calls(self) -> dict[str, Call]:
        """What is timed."""
        made: dict[str, Call] = {
            "allreduce": lambda: distributed.all_reduce(self.reduced),
            "allgather": lambda: distributed.all_gather_into_tensor(self.gathered, self.mine),
            "reducescatter": lambda: distributed.reduce_scatter_tensor(self.scattered, self.source),
            "alltoall": lambda: distributed.all_to_all_single(self.swapped, self.source),
        }
        if self.world == 2:
            made["sendrecv"] = self._ping
        return made

    def _ping(self) -> None:
        """Rank 0's buffer to rank 1."""
        if self.rank == 0:
            distributed.send(self.source, 1)
        else:
            distributed.recv(self.swapped, 0)

    def wrong(self) -> dict[str, int]:
        """Elements that differ from what each call must give, after one round of them all."""
        calls = self.calls()
        self.reduced.copy_(self.source)
        found = {}
        for name, call in calls.items():
            call()
            found[name] = self._differing(name)
        return found

    def _differing(self, name: str) -> int:
        if name == "allreduce":
            return int((self.reduced != self.total).sum())
        if name == "allgather":
            return int((self.gathered != self.ranks.to(torch.bfloat16)).sum())
        if name == "reducescatter":
            return int((self.scattered != self.total[self.lane]).sum())
        if name == "alltoall":
            expected = (self.base[self.lane].repeat(self.world) + self.ranks).to(torch.bfloat16)
            return int((self.swapped != expected).sum())
        sent = self.base.to(torch.bfloat16)
        return int((self.swapped != sent).sum()) if self.rank else 0


def summed(wrong: int, device: torch.device) -> int:
    """Over all ranks: a fault on any counts."""
    both = torch.tensor([wrong], device=device)
    distributed.all_reduce(both)
    return int(both.item())


def measure(rank: int, world: int, nbytes: int, device: torch.device) -> Iterator[dict[str, Any]]:
    """Every NCCL collective of one size, eager and in a graph."""
    host = device.type != "cuda"
    one = Collective(rank, world, nbytes, device)
    wrong = {name: summed(count, device) for name, count in one.wrong().items()}
    unroll = 8 if nbytes <= 4 << 20 else 1
    for name, call in one.calls().items():
        point = {"name": name, "bytes": one.nbytes, "wrong": wrong[name]}
        yield {**point, "mode": "eager", "us": timed(call, host)}
        if not host:
            yield {**point, "mode": "graph", "us": timed(in_graph(call, unroll), host) / unroll}


def one_shot(rank: int, world: int, nbytes: int, device: torch.device) -> Iterator[dict[str, Any]]:
    """All-reduce by reading every peer's buffer, in a graph; a point without time where peer memory is not shared."""
    point = {"name": "allreduce_one_shot", "bytes": nbytes, "mode": "graph"}
    try:
        import torch.distributed._symmetric_memory as symmetric

        symm: Any = symmetric
        group: Any = distributed.group.WORLD
        source = symm.empty(nbytes // 2, dtype=torch.bfloat16, device=device)
        symm.rendezvous(source, group=group)
        base = torch.arange(nbytes // 2, device=device) % 7
        source.copy_((base + rank).to(torch.bfloat16))
        reduced = torch.empty_like(source)
        ops: Any = torch.ops.symm_mem

        def call() -> None:
            ops.one_shot_all_reduce_out(source, "sum", group.group_name, reduced)

        call()
        torch.cuda.synchronize()
        total = (base * world + world * (world - 1) // 2).to(torch.bfloat16)
        wrong = summed(int((reduced != total).sum()), device)
        yield {**point, "wrong": wrong, "us": timed(in_graph(call, 8), False) / 8}
    except (RuntimeError, ImportError, AttributeError) as error:
        yield {**point, "why": str(error).splitlines()[0][:200]}


def join(folder: str, world: int, rank: int, host: bool) -> torch.device:
    """Join the group that meets through a file of `folder`; this rank's device. A rank ends with the probe."""
    end_with_parent()
    device = torch.device("cpu") if host else torch.device("cuda", rank)
    if not host:
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "gloo" if host else "nccl",
        init_method=f"file://{folder}/rendezvous",
        world_size=world,
        rank=rank,
        device_id=None if host else device,
    )
    return device


def main(folder: str, world: int, rank: int, host: bool) -> None:
    """Join the group through a file, measure every size, leave."""
    device = join(folder, world, rank, host)
    for nbytes in HOST_SIZES if host else SIZES:
        points = list(measure(rank, world, nbytes, device))
        if not host and nbytes <= ONE_SHOT_BYTES:
            points += one_shot(rank, world, nbytes, device)
        if rank == 0:
            for point in points:
                sys.stdout.write(json.dumps(point) + "\n")
            sys.stdout.flush()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "host" in sys.argv[4:])
