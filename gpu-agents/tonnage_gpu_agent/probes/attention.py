"""Attention over 8192 tokens: the score matrix in memory, tiles with online softmax, and the fused kernel (lab 5)."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.probes.probe import MIB, Bench, duration, judged, relative_error

HEADS, TOKENS, DIM = 16, 8192, 128
TILE = 1024
CHECKED_QUERIES = 64

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(q k^T / sqrt(d)) v with the whole score matrix in memory, softmax in float32."""
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    return torch.softmax(scores.float(), -1).to(q.dtype) @ v


def tiled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One tile of keys at a time with a running maximum and sum: never the whole score matrix."""
    scale = 1 / math.sqrt(q.shape[-1])
    peak = torch.full((*q.shape[:-1], 1), -torch.inf, device=q.device, dtype=torch.float32)
    total = torch.zeros_like(peak)
    out = torch.zeros(q.shape, device=q.device, dtype=torch.float32)
    for start in range(0, k.shape[-2], TILE):
        keys, values = k[..., start : start + TILE, :], v[..., start : start + TILE, :]
        scores = (q @ keys.transpose(-1, -2)).float() * scale
        new_peak = torch.maximum(peak, scores.amax(-1, keepdim=True))
        weights = torch.exp(scores - new_peak)
        correction = torch.exp(peak - new_peak)
        total = total * correction + weights.sum(-1, keepdim=True)
        out = out * correction + (weights.to(q.dtype) @ values).float()
        peak = new_peak
    return (out / total).to(q.dtype)


IMPLEMENTATIONS: dict[str, Attention] = {"naive": naive, "tiled": tiled, "sdpa": scaled_dot_product_attention}


class AttentionProbe:
    """Time and peak extra memory of each implementation, fp16, not causal."""

    def unsupported(self, bench: Bench) -> str | None:
        """The naive one takes 10 GiB."""
        return None if bench.rehearsal or bench.free_bytes() > 14 << 30 else "needs 14 GiB of free device memory"

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """naive, tiled, sdpa."""
        tokens = bench.sized(TOKENS, 64)
        q, k, v = (bench.normal(1, HEADS, tokens, DIM, dtype=torch.float16) for _ in range(3))
        picked = torch.randint(
            0, tokens, (min(CHECKED_QUERIES, tokens),), device=bench.device, generator=bench.generator
        )
        wide = [t.double() for t in (q[:, :, picked], k, v)]
        reference = torch.softmax(wide[0] @ wide[1].transpose(-1, -2) / math.sqrt(DIM), -1) @ wide[2]
        del wide
        for name, attention in IMPLEMENTATIONS.items():
            error = relative_error(attention(q, k, v)[:, :, picked], reference)
            peak = _peak_mib(bench, partial(attention, q, k, v))
            timing = bench.timer.eager([partial(attention, q, k, v)], budget_ms=60)
            point = duration(
                "attention",
                timing,
                flops=4 * HEADS * tokens * tokens * DIM,
                implementation=name,
                tokens=tokens,
                peak_mib=peak,
            )
            yield judged(point, error, 1e-2)


def _peak_mib(bench: Bench, call: Callable[[], object]) -> float:
    if bench.rehearsal:
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / MIB


probe = AttentionProbe()
