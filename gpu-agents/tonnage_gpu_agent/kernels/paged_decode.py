"""Split-KV decode attention over a paged KV cache with grouped-query heads (FlashDecoding over PagedAttention).

The cache is `[blocks, kv_heads, block_size, head_dim]` for K and for V, so that a page of a head is contiguous; a block
table maps a sequence's logical blocks to pages. Each program handles one sequence, one KV head and one span of its
tokens, for all query heads of that group (and, when a step verifies drafts, all its query tokens) with one running
maximum and sum; a second kernel merges the spans by the same rescaling identity (online softmax).
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

LOG2E = 1.4426950408889634
TILE = 64
"""Tokens a program reads at a time: 16 KiB of keys and of values in bf16 at 128 lanes."""


@triton.jit
def _split(
    q,
    k,
    v,
    table,
    lengths,
    part,
    part_m,
    part_l,
    scale_log2,
    table_stride,
    kv_heads,
    rows,
    group,
    q_tokens,
    splits,
    span,
    page: tl.constexpr,
    head_dim: tl.constexpr,
    row_block: tl.constexpr,
    tile: tl.constexpr,
    stages: tl.constexpr,
):
    sequence = tl.program_id(2)
    head = tl.program_id(1)
    split = tl.program_id(0)
    length = tl.load(lengths + sequence)
    begin = split * span
    end = tl.minimum(begin + span, length)
    row = tl.arange(0, row_block)
    lane = tl.arange(0, head_dim)
    in_rows = row < rows
    # Row r is query token r // group and query head head * group + r % group of the sequence.
    q_row = (sequence * q_tokens + row // group) * kv_heads * group + head * group + row % group
    query = tl.load(q + q_row[:, None].to(tl.int64) * head_dim + lane[None, :], mask=in_rows[:, None], other=0.0)
    limit = length - q_tokens + row // group
    peak = tl.full((row_block,), -float("inf"), tl.float32)
    total = tl.zeros((row_block,), tl.float32)
    out = tl.zeros((row_block, head_dim), tl.float32)
    for start in tl.range(begin, end, tile, num_stages=stages):
        position = start + tl.arange(0, tile)
        valid = position < end
        block = tl.load(table + sequence.to(tl.int64) * table_stride + position // page, mask=valid, other=0)
        at = ((block.to(tl.int64) * kv_heads + head) * page + position % page) * head_dim
        keys = tl.load(k + at[:, None] + lane[None, :], mask=valid[:, None], other=0.0)
        scores = tl.dot(query, tl.trans(keys)) * scale_log2
        seen = valid[None, :] & (position[None, :] <= limit[:, None])
        scores = tl.where(seen, scores, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        shift = tl.where(new_peak == -float("inf"), 0.0, new_peak)
        weights = tl.exp2(scores - shift[:, None])
        correction = tl.exp2(peak - shift)
        total = total * correction + tl.sum(weights, axis=1)
        values = tl.load(v + at[:, None] + lane[None, :], mask=valid[:, None], other=0.0)
        out = out * correction[:, None] + tl.dot(weights.to(values.dtype), values)
        peak = new_peak
    slot = ((sequence * kv_heads + head) * splits + split) * rows + row
    tl.store(part + slot[:, None].to(tl.int64) * head_dim + lane[None, :], out, mask=in_rows[:, None])
    tl.store(part_m + slot, peak, mask=in_rows)
    tl.store(part_l + slot, total, mask=in_rows)


@triton.jit
def _merge(
    part,
    part_m,
    part_l,
    out,
    kv_heads,
    rows,
    group,
    q_tokens,
    splits,
    split_block: tl.constexpr,
    head_dim: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    sequence = tl.program_id(2)
    split = tl.arange(0, split_block)
    lane = tl.arange(0, head_dim)
    first = (sequence * kv_heads + head) * splits * rows + row
    peak = tl.full((split_block,), -float("inf"), tl.float32)
    for base in range(0, splits, split_block):
        peak = tl.maximum(
            peak, tl.load(part_m + first + (base + split) * rows, mask=base + split < splits, other=-float("inf"))
        )
    top = tl.max(peak, axis=0)
    total = tl.zeros((split_block,), tl.float32)
    merged = tl.zeros((head_dim,), tl.float32)
    for base in range(0, splits, split_block):
        inside = base + split < splits
        slot = first + (base + split) * rows
        weight = tl.exp2(tl.load(part_m + slot, mask=inside, other=-float("inf")) - top)
        total += weight * tl.load(part_l + slot, mask=inside, other=0.0)
        spans = tl.load(part + slot[:, None].to(tl.int64) * head_dim + lane[None, :], mask=inside[:, None], other=0.0)
        merged += tl.sum(spans * weight[:, None], axis=0)
    result = merged / tl.sum(total, axis=0)
    q_row = (sequence * q_tokens + row // group) * kv_heads * group + head * group + row % group
    tl.store(out + q_row.to(tl.int64) * head_dim + lane, result.to(out.dtype.element_ty))


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """How the work is cut: `splits` spans of `span` tokens, and the tile a program reads at a time."""

    splits: int
    span: int
    tile: int = TILE
    warps: int = 4
    stages: int = 4


def plan_decode(batch: int, kv_heads: int, context: int, multiprocessors: int) -> DecodePlan:
    """As many spans as make four programs a multiprocessor, of 128 tokens or more.

    Measured on an H200 over 4 MiB to 4 GiB of cache: about four programs a multiprocessor were best or within 2 % of
    it everywhere; more spans only cost partial results, fewer leave the memory idle.
    """
    splits = max(1, 4 * multiprocessors // (batch * kv_heads))
    span = max(2 * TILE, -(-context // splits))
    span = -(-span // TILE) * TILE
    return DecodePlan(-(-context // span), span)


@dataclass(frozen=True, slots=True)
class PagedDecode:
    """Scratch and plan of a decode attention over `batch` sequences of up to `context` tokens; reused every step."""

    plan: DecodePlan
    part: torch.Tensor
    part_m: torch.Tensor
    part_l: torch.Tensor

    @classmethod
    def make(
        cls, plan: DecodePlan, batch: int, kv_heads: int, rows: int, head_dim: int, device: torch.device
    ) -> "PagedDecode":
        """Scratch for `rows` = query heads a KV head times query tokens a sequence."""
        slots = batch * kv_heads * plan.splits * rows
        flat = [torch.empty(slots * width, dtype=torch.float32, device=device) for width in (head_dim, 1, 1)]
        return cls(plan, *flat)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        table: torch.Tensor,
        lengths: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Attention of `q` [batch, q_tokens, heads, head_dim] over pages `k`, `v` [blocks, kv_heads, page, head_dim].

        `table` [batch, blocks a sequence] and `lengths` [batch] are int32; `lengths` counts the query tokens, whose
        keys are in the cache already, and query token i sees all but the later ones (causal). `out` is like `q`.
        """
        batch, q_tokens, heads, head_dim = q.shape
        kv_heads, page = k.shape[1], k.shape[2]
        group = heads // kv_heads
        rows = group * q_tokens
        plan = self.plan
        _split[(plan.splits, kv_heads, batch)](
            q,
            k,
            v,
            table,
            lengths,
            self.part,
            self.part_m,
            self.part_l,
            LOG2E / head_dim**0.5,
            table.stride(0),
            kv_heads,
            rows,
            group,
            q_tokens,
            plan.splits,
            plan.span,
            page=page,
            head_dim=head_dim,
            row_block=max(16, triton.next_power_of_2(rows)),
            tile=plan.tile,
            stages=plan.stages,
            num_warps=plan.warps,
        )
        _merge[(rows, kv_heads, batch)](
            self.part,
            self.part_m,
            self.part_l,
            out,
            kv_heads,
            rows,
            group,
            q_tokens,
            plan.splits,
            split_block=min(64, triton.next_power_of_2(plan.splits)),
            head_dim=head_dim,
            num_warps=4,
        )


def attention_reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """The same attention in float64, one sequence at a time: softmax(q k / sqrt(d)) v with the causal limit."""
    batch, q_tokens, heads, head_dim = q.shape
    group = heads // k.shape[1]
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for b in range(batch):
        n = int(lengths[b])
        blocks = table[b, : -(-n // k.shape[2])].long()
        keys = k[blocks].double().transpose(1, 2).reshape(-1, k.shape[1], head_dim)[:n].repeat_interleave(group, 1)
        values = v[blocks].double().transpose(1, 2).reshape(-1, k.shape[1], head_dim)[:n].repeat_interleave(group, 1)
        scores = torch.einsum("qhd,nhd->hqn", q[b].double(), keys) / head_dim**0.5
        limit = n - q_tokens + torch.arange(q_tokens, device=q.device)
        scores.masked_fill_(torch.arange(n, device=q.device)[None, None, :] > limit[None, :, None], -torch.inf)
        out[b] = torch.einsum("hqn,nhd->qhd", torch.softmax(scores, -1), values)
    return out
