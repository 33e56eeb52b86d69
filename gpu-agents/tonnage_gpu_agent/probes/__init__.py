"""Probes: GPU microbenchmarks as plugins. Here only their names; a module is imported when its probe runs.

A plugin is one file with an object `probe` (see `probes.probe.Probe`) and a line in `PROBES`, or a package that
registers the entry point group `tonnage.probes`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tonnage_gpu_agent.errors import UnknownProbeError

QUICK, FULL = "quick", "full"
SUITES = (QUICK, FULL)


@dataclass(frozen=True, slots=True)
class ProbeEntry:
    """A registered probe: its module, and whether the quick suite has it (the full suite has all)."""

    name: str
    module: str
    quick: bool
    summary: str


def _entry(name: str, quick: bool, summary: str) -> ProbeEntry:
    return ProbeEntry(name, f"{__name__}.{name}", quick, summary)


PROBES: tuple[ProbeEntry, ...] = (
    _entry("hbm_copy", True, "device memory copied to device memory"),
    _entry("hbm_read", True, "device memory read"),
    _entry("hbm_write", False, "device memory written"),
    _entry("hbm_triad", False, "a = b + s * c over device memory"),
    _entry("gemm_bf16", True, "matrix products of 8192 x 8192 in bf16, B = 1 to 8192"),
    _entry("gemm_fp16", False, "the same in fp16"),
    _entry("gemm_fp8", True, "the same in fp8 (e4m3)"),
    _entry("gemm_int8", False, "the same in int8"),
    _entry("transfer_pinned", True, "pinned host memory to and from the device, and both at once"),
    _entry("transfer_pageable", False, "ordinary host memory to and from the device"),
    _entry("pin_cost", False, "cost of page-locking host memory"),
    _entry("launch", True, "launch cost of a kernel, eager and in a graph"),
    _entry("fusion", True, "y = 2 x + 1: copy, Triton, eager, torch.compile"),
    _entry("kv_allocator", True, "the KV cache formula against the allocator"),
    _entry("attention", False, "naive, tiled and fused attention, with peak memory"),
    _entry("decode_attention", True, "split-KV decode attention over a paged cache"),
    _entry("lora_gemm", True, "a linear layer with batched low-rank adapters"),
    _entry("decode_step", False, "a Llama-8B-shaped decode step over batch and context"),
    _entry("verify_step", False, "a speculative verify step beside a decode step"),
    _entry("prefill_chunk", False, "a Llama-8B-shaped prefill chunk"),
    _entry("p2p_copy", False, "copies to each peer GPU"),
    _entry("collectives", False, "NCCL collectives over the node's GPUs"),
    _entry("tensor_parallel", False, "a Llama-70B-shaped decode step over the node's GPUs"),
    _entry("disk_read", False, "a file into host memory, from disk and from the page cache"),
)
"""In the order they run."""


def select(suite: str, only: Sequence[str] = (), entries: Sequence[ProbeEntry] = PROBES) -> list[ProbeEntry]:
    """The probes of a suite, or those named; `UnknownProbeError` lists the known ones."""
    known = {entry.name: entry for entry in entries}
    for name in only:
        if name not in known:
            raise UnknownProbeError(f"no probe {name!r}; known: {', '.join(sorted(known))}")
    if only:
        return [entry for entry in entries if entry.name in only]
    return [entry for entry in entries if entry.quick or suite == FULL]
