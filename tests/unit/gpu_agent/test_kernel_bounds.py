"""Kernels at the edges of their operands and of their number range, in Triton's interpreter.

Operands lie between fences: a read beyond its mask meets a NaN (which no zero weight hides), a write changes a fence.
"""

import itertools

import pytest
import torch

from tonnage_gpu_agent.kernels.lora import AdapterRows, LoraCut, expand, lora_reference, shrink
from tonnage_gpu_agent.kernels.paged_decode import DecodePlan, PagedDecode, attention_reference
from tonnage_gpu_agent.kernels.streams import read_sum, scale_shift
from tonnage_gpu_agent.kernels.transformer import add_rms_norm, silu_multiply
from tonnage_gpu_agent.probes.probe import relative_error

HOST = torch.device("cpu")
MARGIN = 256
HUGE = 1e30
NAN = float("nan")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)


class Fenced:
    """A contiguous tensor `inner` between two fences of `fill`."""

    def __init__(self, values: torch.Tensor, fill: float = NAN) -> None:
        self._flat = torch.full((values.numel() + 2 * MARGIN,), fill, dtype=values.dtype)
        self.inner = self._flat[MARGIN:-MARGIN].view(values.shape)
        self.inner.copy_(values)
        self._before = self._flat.clone()

    @property
    def whole(self) -> bool:
        """Nothing was written beside the tensor."""
        fences = (slice(None, MARGIN), slice(-MARGIN, None))
        return all(torch.equal(self._flat[f].nan_to_num(5.0), self._before[f].nan_to_num(5.0)) for f in fences)


@pytest.mark.parametrize("fill", [NAN, HUGE])
@pytest.mark.parametrize("adapters_of_rows", [[2, 0, 1, 2, 2], [0] * 7, [1, -1, 0]])
@pytest.mark.parametrize("rank", [16, 5])
def test_adapters_read_and_write_their_own_operands_only(adapters_of_rows: list[int], rank: int, fill: float) -> None:
    rows_of = torch.tensor(adapters_of_rows)
    batch, width_in, width_out, adapters = len(adapters_of_rows), 96, 80, 3
    x, w = Fenced(torch.randn(batch, width_in)), torch.randn(width_out, width_in) / 10
    a, b = Fenced(torch.randn(adapters, rank, width_in) / 10), Fenced(torch.randn(adapters, width_out, rank))
    cut = LoraCut(splits=2, shrink_tile=32, expand_tile=32)
    part = Fenced(torch.full((cut.splits, batch, rank), torch.nan), fill)
    grouped = AdapterRows.group(rows_of, adapters)
    rows = AdapterRows(Fenced(grouped.order, batch).inner, grouped.starts)
    y = Fenced(x.inner @ w.T, HUGE)
    shrink(x.inner, a.inner, rows, part.inner, cut)
    for row, adapter in enumerate(adapters_of_rows):
        want = a.inner[adapter].double() @ x.inner[row].double()
        assert adapter < 0 or relative_error(part.inner[:, row].double().sum(0), want) < 1e-5
    expand(part.inner, b.inner, y.inner, rows, 0.5, cut)
    assert relative_error(y.inner, lora_reference(x.inner, w, a.inner, b.inner, rows_of, 0.5)) < 1e-5
    assert x.whole and part.whole and y.whole


def decode(
    heads: int, kv_heads: int, q_tokens: int, lengths: list[int], plan: DecodePlan, *, fill: float, sharpness: float
) -> float:
    """Relative error of a fenced paged decode whose scores have a standard deviation of `sharpness`."""
    page, dim, batch = 16, 32, len(lengths)
    blocks = -(-max(lengths) // page)
    k, v = (Fenced(torch.randn(batch * blocks, kv_heads, page, dim)) for _ in range(2))
    table = torch.randperm(batch * blocks).view(batch, blocks).int()
    counts = torch.tensor(lengths, dtype=torch.int32)
    q = Fenced(torch.randn(batch, q_tokens, heads, dim) * sharpness)
    out = Fenced(torch.full_like(q.inner, torch.nan), HUGE)
    rows = heads // kv_heads * q_tokens
    made = PagedDecode.make(plan, batch, kv_heads, rows, dim, HOST)
    scratch = [Fenced(torch.full_like(tensor, torch.nan), fill) for tensor in (made.part, made.part_m, made.part_l)]
    kernel = PagedDecode(plan, *(each.inner for each in scratch))
    kernel(q.inner, k.inner, v.inner, table, counts, out.inner)
    assert out.whole and all(each.whole for each in scratch)
    return relative_error(out.inner, attention_reference(q.inner, k.inner, v.inner, table, counts))


@pytest.mark.parametrize("fill", [NAN, HUGE])
@pytest.mark.parametrize(
    "heads, kv_heads, q_tokens, lengths, plan",
    [
        (6, 2, 1, [37, 130], DecodePlan(5, 32, tile=32)),
        (4, 2, 3, [65, 40], DecodePlan(2, 64, tile=32)),
        (1, 1, 5, [5, 33], DecodePlan(3, 16, tile=16)),
    ],
)
def test_decode_attention_reads_and_writes_its_own_operands_only(
    heads: int, kv_heads: int, q_tokens: int, lengths: list[int], plan: DecodePlan, fill: float
) -> None:
    """In the last two a span's only tokens are later than a query token: it has no score there at all."""
    assert decode(heads, kv_heads, q_tokens, lengths, plan, fill=fill, sharpness=1.0) < 1e-5


@pytest.mark.parametrize("plan", [DecodePlan(1, 160, tile=16), DecodePlan(5, 32, tile=16)])
def test_scores_far_beyond_the_exponents_range_neither_overflow_nor_vanish(plan: DecodePlan) -> None:
    assert decode(4, 2, 1, [37, 130], plan, fill=NAN, sharpness=400.0) < 1e-3


@pytest.mark.parametrize("n, programs", [(1000, 4), (4096, 8), (5, 3)])
def test_a_read_sums_in_single_precision_and_its_own_operand_only(n: int, programs: int) -> None:
    x, sums = Fenced(torch.randn(n) + 100.0), Fenced(torch.full((programs,), torch.nan), HUGE)
    read_sum(x.inner, sums.inner, block=64)
    assert float(sums.inner.double().sum()) == pytest.approx(float(x.inner.double().sum()), rel=1e-6)
    assert sums.whole


@pytest.mark.parametrize("n", [1, 128, 1000])
def test_a_fused_stream_writes_no_fence(n: int) -> None:
    x, y = Fenced(torch.randn(n)), Fenced(torch.full((n,), torch.nan), HUGE)
    scale_shift(x.inner, y.inner, 3.0, -0.5, block=128)
    torch.testing.assert_close(y.inner, x.inner * 3.0 - 0.5)
    assert y.whole


def test_the_norm_and_the_gate_write_no_fence() -> None:
    x, residual = Fenced(torch.randn(3, 40)), Fenced(torch.randn(3, 40), HUGE)
    weight, out = Fenced(torch.randn(40)), Fenced(torch.full((3, 40), torch.nan), HUGE)
    add_rms_norm(x.inner, residual.inner, weight.inner, out.inner)
    assert bool(torch.isfinite(out.inner).all()) and out.whole and residual.whole
    gated, made = Fenced(torch.randn(2, 80)), Fenced(torch.full((2, 40), torch.nan), HUGE)
    silu_multiply(gated.inner, made.inner)
    assert bool(torch.isfinite(made.inner).all()) and made.whole


def test_the_norm_of_small_values_has_its_epsilon() -> None:
    x = torch.randn(2, 40) * 1e-3
    out, weight = torch.full_like(x, torch.nan), torch.ones(40)
    add_rms_norm(x, torch.zeros_like(x), weight, out, add=False)
    wide = x.double()
    assert relative_error(out, wide / torch.sqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)) < 1e-6


def test_the_fences_can_show_a_write() -> None:
    fenced = [Fenced(torch.zeros(4), fill) for fill in (NAN, HUGE)]
    for each, step in itertools.product(fenced, (-1, 4)):
        at = each.inner.storage_offset() + step
        each.inner.as_strided((1,), (1,), at).fill_(3.0)
    assert not any(each.whole for each in fenced)
