"""Triton kernels in Triton's interpreter against float64 references on the CPU."""

import pytest
import torch

from tonnage_gpu_agent.kernels.lora import AdapterRows, LoraCut, expand, lora_reference, shrink
from tonnage_gpu_agent.kernels.paged_decode import DecodePlan, PagedDecode, attention_reference, plan_decode
from tonnage_gpu_agent.kernels.streams import read_sum, scale_shift
from tonnage_gpu_agent.kernels.transformer import add_rms_norm, rope_and_store, silu_multiply
from tonnage_gpu_agent.probes.probe import relative_error

HOST = torch.device("cpu")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)


@pytest.mark.parametrize("n", [1, 100, 1000])
def test_scale_and_shift_touches_every_element_and_no_other(n: int) -> None:
    x, y = torch.randn(n), torch.full((n + 8,), torch.nan)
    scale_shift(x, y[:n], 2.0, 1.0, block=128)
    torch.testing.assert_close(y[:n], x * 2 + 1)
    assert bool(torch.isnan(y[n:]).all())


@pytest.mark.parametrize("n, programs", [(1000, 4), (4096, 8), (5, 3)])
def test_a_read_counts_every_element_once(n: int, programs: int) -> None:
    x = torch.randint(-8, 8, (n,)).float()
    sums = torch.full((programs,), torch.nan)
    read_sum(x, sums, block=64)
    assert float(sums.double().sum()) == float(x.double().sum())


def paged(batch: int, kv_heads: int, head_dim: int, page: int, lengths: list[int]) -> tuple[torch.Tensor, ...]:
    blocks = -(-max(lengths) // page)
    pages = batch * blocks + 3
    k, v = (torch.randn(pages, kv_heads, page, head_dim) for _ in range(2))
    table = torch.randperm(pages)[: batch * blocks].view(batch, blocks).int()
    return k, v, table, torch.tensor(lengths, dtype=torch.int32)


@pytest.mark.parametrize(
    "heads, kv_heads, q_tokens, lengths, plan",
    [
        (4, 2, 1, [37, 64], DecodePlan(1, 64, tile=32)),
        (4, 2, 1, [37, 130], DecodePlan(5, 32, tile=32)),
        (8, 2, 3, [40, 97], DecodePlan(2, 64, tile=32)),
        (2, 2, 1, [1, 16], DecodePlan(3, 16, tile=16)),
        (32, 1, 1, [50], DecodePlan(2, 32, tile=16)),
    ],
)
def test_paged_decode_attention_is_attention(
    heads: int, kv_heads: int, q_tokens: int, lengths: list[int], plan: DecodePlan
) -> None:
    k, v, table, counts = paged(len(lengths), kv_heads, 32, 16, lengths)
    q = torch.randn(len(lengths), q_tokens, heads, 32)
    out = torch.full_like(q, torch.nan)
    kernel = PagedDecode.make(plan, len(lengths), kv_heads, heads // kv_heads * q_tokens, 32, HOST)
    kernel(q, k, v, table, counts, out)
    assert relative_error(out, attention_reference(q, k, v, table, counts)) < 1e-5


def test_paged_decode_attention_never_reads_past_a_sequence() -> None:
    k, v, table, counts = paged(1, 2, 32, 16, [21])
    q = torch.randn(1, 1, 4, 32)
    outs = []
    for poison in (0.0, torch.nan):
        last = int(table[0, 1])
        k[last, :, 5:], v[last, :, 5:] = poison, poison
        out = torch.empty_like(q)
        PagedDecode.make(DecodePlan(2, 16, tile=16), 1, 2, 2, 32, HOST)(q, k, v, table, counts, out)
        outs.append(out)
    assert torch.equal(outs[0], outs[1])


@pytest.mark.parametrize("batch, context", [(1, 1024), (8, 32768), (256, 1024), (1, 131072), (64, 17)])
def test_a_decode_plan_covers_the_context_and_little_more(batch: int, context: int) -> None:
    plan = plan_decode(batch, 8, context, 132)
    assert plan.splits * plan.span >= context
    assert (plan.splits - 1) * plan.span < context


def test_a_long_context_of_one_sequence_fills_the_chip() -> None:
    assert plan_decode(1, 8, 32768, 132).splits * 8 >= 2 * 132


@pytest.mark.parametrize("adapters_of_rows", [[0, 0, 0], [2, 0, 1, 2, 2], [-1, 1, -1, 0], [-1, -1], [1] * 20])
@pytest.mark.parametrize("rank", [16, 8])
def test_batched_adapters_add_each_rows_own_update(adapters_of_rows: list[int], rank: int) -> None:
    rows_of = torch.tensor(adapters_of_rows)
    batch, width_in, width_out, adapters = len(adapters_of_rows), 96, 80, 3
    x, w = torch.randn(batch, width_in), torch.randn(width_out, width_in) / 10
    a, b = torch.randn(adapters, rank, width_in) / 10, torch.randn(adapters, width_out, rank)
    cut = LoraCut(splits=2, shrink_tile=32, expand_tile=32)
    part = torch.full((cut.splits, batch, rank), torch.nan)
    rows = AdapterRows.group(rows_of, adapters)
    y = x @ w.T
    shrink(x, a, rows, part, cut)
    expand(part, b, y, rows, 0.5, cut)
    assert relative_error(y, lora_reference(x, w, a, b, rows_of, 0.5)) < 1e-5


@pytest.mark.parametrize("add", [True, False])
def test_the_norm_adds_the_residual_first(add: bool) -> None:
    x, residual, weight = torch.randn(3, 40), torch.randn(3, 40), torch.randn(40)
    total = (x + residual if add else x).double()
    want = total / torch.sqrt((total * total).mean(-1, keepdim=True) + 1e-5) * weight
    out = torch.full_like(x, torch.nan)
    add_rms_norm(x, residual, weight, out, add=add)
    assert relative_error(out, want) < 1e-6
    assert relative_error(residual, total) < 1e-6


def test_rotary_embedding_turns_q_and_k_and_stores_k_and_v_in_their_pages() -> None:
    tokens, heads, kv_heads, dim, page = 3, 4, 2, 16, 4
    qkv = torch.randn(tokens, heads + 2 * kv_heads, dim)
    positions = torch.tensor([0, 7, 90], dtype=torch.int32)
    slots = torch.tensor([9, 2, 7])
    q = torch.full((tokens, heads, dim), torch.nan)
    k, v = torch.zeros(3, kv_heads, page, dim), torch.zeros(3, kv_heads, page, dim)
    rope_and_store(qkv, positions, slots, q, k, v, base_log2=18.931568569324174)
    angle = positions.double()[:, None] * 500000.0 ** (-torch.arange(dim // 2).double() / (dim // 2))
    cosine, sine = angle.cos()[:, None], angle.sin()[:, None]
    low, high = qkv[..., : dim // 2].double(), qkv[..., dim // 2 :].double()
    turned = torch.cat([low * cosine - high * sine, high * cosine + low * sine], -1)
    assert relative_error(q, turned[:, :heads]) < 1e-5
    for token, slot in enumerate(slots.tolist()):
        assert relative_error(k[slot // page, :, slot % page], turned[token, heads : heads + kv_heads]) < 1e-5
        assert torch.equal(v[slot // page, :, slot % page], qkv[token, heads + kv_heads :])
    assert int((k != 0).any(-1).sum()) == tokens * kv_heads


def test_the_gate_is_silu_times_up() -> None:
    x = torch.randn(2, 2 * 1100)
    out = torch.full((2, 1100), torch.nan)
    silu_multiply(x, out)
    gate, up = x[:, :1100].double(), x[:, 1100:].double()
    assert relative_error(out, gate / (1 + torch.exp(-gate)) * up) < 1e-6
