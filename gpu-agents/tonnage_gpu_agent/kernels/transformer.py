"""The small kernels between the matrix products of a Llama-shaped layer: norm, rotary embedding with KV write, gate."""

import torch
import triton
import triton.language as tl


@triton.jit
def _add_rms_norm(x, residual, weight, out, width, epsilon, add: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, block)
    inside = lane < width
    value = tl.load(x + row * width + lane, mask=inside, other=0.0).to(tl.float32)
    if add:
        value += tl.load(residual + row * width + lane, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual + row * width + lane, value.to(residual.dtype.element_ty), mask=inside)
    norm = tl.rsqrt(tl.sum(value * value, axis=0) / width + epsilon)
    scaled = value * norm * tl.load(weight + lane, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + lane, scaled.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rope_and_store(
    qkv,
    positions,
    slots,
    q,
    k_cache,
    v_cache,
    heads,
    kv_heads,
    log2_base,
    page: tl.constexpr,
    head_dim: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half: tl.constexpr = head_dim // 2
    lane = tl.arange(0, half)
    source = qkv + token * (heads + 2 * kv_heads) * head_dim + head * head_dim
    first = tl.load(source + lane)
    second = tl.load(source + half + lane)
    if head < heads + kv_heads:
        angle = tl.load(positions + token).to(tl.float32) * tl.exp2(lane.to(tl.float32) * (-log2_base / half))
        cosine = tl.cos(angle)
        sine = tl.sin(angle)
        low = first.to(tl.float32)
        high = second.to(tl.float32)
        first = (low * cosine - high * sine).to(first.dtype)
        second = (high * cosine + low * sine).to(second.dtype)
    slot = tl.load(slots + token)
    kv_head = (head - heads) % kv_heads
    cell = ((slot // page * kv_heads + kv_head) * page + slot % page) * head_dim
    if head < heads:
        target = q + (token * heads + head) * head_dim
    elif head < heads + kv_heads:
        target = k_cache + cell
    else:
        target = v_cache + cell
    tl.store(target + lane, first)
    tl.store(target + half + lane, second)


@triton.jit
def _silu_multiply(x, out, width, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * block + tl.arange(0, block)
    inside = lane < width
    gate = tl.load(x + row * 2 * width + lane, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + lane, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + lane, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=inside)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, add: bool = True
) -> None:
    """`residual += x` (or `residual = x` without `add`), `out = residual / rms(residual) * weight`; [rows, width]."""
    rows, width = x.shape
    _add_rms_norm[(rows,)](
        x, residual, weight, out, width, 1e-5, add=add, block=triton.next_power_of_2(width), num_warps=8
    )


def rope_and_store(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    base_log2: float,
) -> None:
    """Rotate q and k of `qkv` [tokens, heads + 2 kv_heads, head_dim] by `positions`; write q to `q` [tokens, heads,
    head_dim], k and v into the paged caches [blocks, kv_heads, page, head_dim] at `slots` (int64 token slots).

    Halves are rotated as Llama does; the angle of lane i is position * base^(-2i / head_dim).
    """
    tokens, heads, head_dim = q.shape
    kv_heads, page = k_cache.shape[1], k_cache.shape[2]
    _rope_and_store[(tokens, heads + 2 * kv_heads)](
        qkv,
        positions,
        slots,
        q,
        k_cache,
        v_cache,
        heads,
        kv_heads,
        base_log2,
        page=page,
        head_dim=head_dim,
        num_warps=1,
    )


def silu_multiply(x: torch.Tensor, out: torch.Tensor) -> None:
    """`out = silu(gate) * up` with `x` [rows, gate | up] and `out` [rows, width]."""
    rows, width = out.shape
    _silu_multiply[(rows, triton.cdiv(width, 1024))](x, out, width, block=1024, num_warps=4)
