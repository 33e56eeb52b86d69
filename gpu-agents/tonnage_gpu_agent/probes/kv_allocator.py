"""The KV cache formula against the allocator: 2 x layers x kv_heads x head_dim x bytes x tokens (guide lab 3)."""

from collections.abc import Iterator

import torch

from tonnage_core.gpu_health.measurement import Measurement, PointStatus
from tonnage_gpu_agent.probes.probe import GIB, Bench

LAYERS, KV_HEADS, DIM, BYTES = 32, 8, 128, 2
SEQUENCES, TOKENS = 4, 4096


class KvAllocator:
    """A planner that sizes pools by the formula is right only while the allocator agrees."""

    def unsupported(self, bench: Bench) -> str | None:
        """Needs the device allocator's count."""
        if bench.rehearsal:
            return "a host has no device allocator"
        return None if bench.free_bytes() > 3 * GIB else "needs 3 GiB of free device memory"

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """Bytes a token, measured."""
        predicted = 2 * LAYERS * KV_HEADS * DIM * BYTES * SEQUENCES * TOKENS
        before = torch.cuda.memory_allocated()
        cache = torch.empty(LAYERS, 2, SEQUENCES, TOKENS, KV_HEADS, DIM, dtype=torch.float16, device=bench.device)
        measured = torch.cuda.memory_allocated() - before
        del cache
        same = measured == predicted
        yield Measurement(
            "kv_allocator",
            PointStatus.OK if same else PointStatus.WRONG,
            measured / (SEQUENCES * TOKENS),
            "bytes/token",
            bytes=measured,
            params={"predicted_bytes": predicted},
            detail="" if same else f"the allocator took {measured} bytes, the formula says {predicted}",
        )


probe = KvAllocator()
