"""The decode step again, in float64 and in plain framework operations: what the fast one is compared with."""

import torch

from tonnage_gpu_agent.kernels.paged_decode import attention_reference
from tonnage_gpu_agent.probes.llama import PAGE, DecodeStep, Weights


def _norm(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def _rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    lane = torch.arange(half, device=x.device, dtype=torch.float64)
    angle = (positions.double()[:, None] * 500000.0 ** (-lane / half))[:, None, :]
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()], -1)


def reference_logits(step: DecodeStep, k: torch.Tensor, v: torch.Tensor, layers: int) -> torch.Tensor:
    """Logits in float64 of `layers` layers over caches `k`, `v` as they were before the step (they are written)."""
    w: Weights = step.weights
    shape = w.shape
    residual = w.embedding[step.ids].double()
    for layer in range(layers):
        group = layer % len(step.tables)
        qkv = (_norm(residual) @ w.qkv[layer].double().T).view(step.tokens, -1, shape.head_dim)
        turned = _rotated(qkv[:, : shape.heads + shape.kv_heads], step.positions)
        block, cell = step.slots[group] // PAGE, step.slots[group] % PAGE
        k[block, :, cell] = turned[:, shape.heads :].to(k.dtype)
        v[block, :, cell] = qkv[:, shape.heads + shape.kv_heads :].to(v.dtype)
        q = turned[:, : shape.heads].reshape(step.batch, step.q_tokens, shape.heads, shape.head_dim)
        attended = attention_reference(q, k, v, step.tables[group], step.lengths)
        residual = residual + attended.reshape(step.tokens, -1) @ w.out[layer].double().T
        gate, up = (_norm(residual) @ w.gate_up[layer].double().T).chunk(2, -1)
        residual = residual + (torch.nn.functional.silu(gate) * up) @ w.down[layer].double().T
    return _norm(residual) @ w.head.double().T
