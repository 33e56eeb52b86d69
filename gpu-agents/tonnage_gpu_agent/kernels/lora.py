"""Batched low-rank adapters: `y += scale * (x A_i^T) B_i^T` where each row of the batch names its adapter i.

Rows are grouped by adapter (`order`, `starts`), so a program loads its adapter's weights once for all its rows. The
shrink `x A^T` is cut along the input width (its output is only rows x rank), the expand along the output width. A
shrink does not depend on the base product: captured on a second stream it runs beside it.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@triton.jit
def _shrink(
    x,
    a,
    part,
    order,
    starts,
    width,
    batch,
    per_split,
    rank: tl.constexpr,
    rank_block: tl.constexpr,
    row_block: tl.constexpr,
    tile: tl.constexpr,
):
    adapter = tl.program_id(0)
    split = tl.program_id(1)
    first = tl.load(starts + adapter)
    last = tl.load(starts + adapter + 1)
    r = tl.arange(0, rank_block)
    lane = tl.arange(0, tile)
    for base in range(first, last, row_block):
        slot = base + tl.arange(0, row_block)
        inside = slot < last
        row = tl.load(order + slot, mask=inside, other=0)
        total = tl.zeros((row_block, rank_block), tl.float32)
        for step in range(0, per_split, tile):
            column = split * per_split + step + lane
            rows = tl.load(
                x + row[:, None] * width + column[None, :], mask=inside[:, None] & (column < width)[None, :], other=0.0
            )
            weights = tl.load(
                a + (adapter * rank + r)[None, :] * width + column[:, None],
                mask=(r < rank)[None, :] & (column < width)[:, None],
                other=0.0,
            )
            total += tl.dot(rows, weights)
        tl.store(
            part + (split * batch + row)[:, None] * rank + r[None, :], total, mask=inside[:, None] & (r < rank)[None, :]
        )


@triton.jit
def _expand(
    part,
    b,
    y,
    order,
    starts,
    width,
    batch,
    splits,
    scale,
    rank: tl.constexpr,
    rank_block: tl.constexpr,
    row_block: tl.constexpr,
    tile: tl.constexpr,
):
    adapter = tl.program_id(0)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    first = tl.load(starts + adapter)
    last = tl.load(starts + adapter + 1)
    r = tl.arange(0, rank_block)
    within = column < width
    weights = tl.load(
        b + (adapter * width + column)[None, :] * rank + r[:, None],
        mask=(r < rank)[:, None] & within[None, :],
        other=0.0,
    )
    for base in range(first, last, row_block):
        slot = base + tl.arange(0, row_block)
        inside = slot < last
        row = tl.load(order + slot, mask=inside, other=0)
        low = tl.zeros((row_block, rank_block), tl.float32)
        for split in range(0, splits):
            low += tl.load(
                part + (split * batch + row)[:, None] * rank + r[None, :],
                mask=inside[:, None] & (r < rank)[None, :],
                other=0.0,
            )
        at = y + row[:, None].to(tl.int64) * width + column[None, :]
        mask = inside[:, None] & within[None, :]
        update = tl.dot(low.to(weights.dtype), weights) * scale
        tl.store(at, (tl.load(at, mask=mask, other=0.0).to(tl.float32) + update).to(y.dtype.element_ty), mask=mask)


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """Rows of a batch grouped by adapter: `order` [batch] and `starts` [adapters + 1], int32."""

    order: torch.Tensor
    starts: torch.Tensor

    @classmethod
    def group(cls, adapter_of_row: torch.Tensor, adapters: int) -> "AdapterRows":
        """From each row's adapter; rows of adapter -1 have none and are left alone."""
        order = torch.argsort(adapter_of_row, stable=True)
        counts = torch.bincount(adapter_of_row[adapter_of_row >= 0].long(), minlength=adapters)
        skipped = int((adapter_of_row < 0).sum())
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)]) + skipped
        return cls(order.int(), starts.int())


@dataclass(frozen=True, slots=True)
class LoraCut:
    """How the shrink and the expand are cut."""

    splits: int = 8
    row_block: int = 16
    shrink_tile: int = 256
    expand_tile: int = 128
    warps: int = 4


def cut_for(batch: int, adapters: int) -> LoraCut:
    """Measured on an H200: about 64 shrink programs hide beside the base product, and each expand program sums few
    parts; a block of rows holds an adapter's share of the batch, up to 64."""
    share = triton.next_power_of_2(max(1, batch // adapters))
    return LoraCut(splits=max(4, min(32, 64 // adapters)), row_block=max(16, min(64, share)))


def shrink(x: torch.Tensor, a: torch.Tensor, rows: AdapterRows, part: torch.Tensor, cut: LoraCut) -> None:
    """`part[s] = x A_i^T` over the s-th span of the input width; x [batch, in], a [adapters, rank, in],
    part [splits, batch, rank] float32."""
    batch, width = x.shape
    adapters, rank, _ = a.shape
    per_split = triton.cdiv(triton.cdiv(width, cut.splits), cut.shrink_tile) * cut.shrink_tile
    _shrink[(adapters, cut.splits)](
        x,
        a,
        part,
        rows.order,
        rows.starts,
        width,
        batch,
        per_split,
        rank=rank,
        rank_block=max(16, triton.next_power_of_2(rank)),
        row_block=cut.row_block,
        tile=cut.shrink_tile,
        num_warps=cut.warps,
    )


def expand(part: torch.Tensor, b: torch.Tensor, y: torch.Tensor, rows: AdapterRows, scale: float, cut: LoraCut) -> None:
    """`y += scale * (sum of part) B_i^T` in place; b [adapters, out, rank], y [batch, out]."""
    splits, batch, rank = part.shape
    adapters, width, _ = b.shape
    _expand[(adapters, triton.cdiv(width, cut.expand_tile))](
        part,
        b,
        y,
        rows.order,
        rows.starts,
        width,
        batch,
        splits,
        scale,
        rank=rank,
        rank_block=max(16, triton.next_power_of_2(rank)),
        row_block=cut.row_block,
        tile=cut.expand_tile,
        num_warps=cut.warps,
    )


def lora_reference(
    x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, adapter_of_row: torch.Tensor, scale: float
) -> torch.Tensor:
    """`x W^T + scale * (x A_i^T) B_i^T` row by row, in float64."""
    y = x.double() @ w.double().T
    for row, adapter in enumerate(adapter_of_row.tolist()):
        if adapter >= 0:
            y[row] += scale * (b[adapter].double() @ (a[adapter].double() @ x[row].double()))
    return y
