"""Seconds of one step: the roofline of every operator, added up, since a step's kernels run one after another.

decode step = (host + small kernels) x (1 + growth x log2 rows) + sum over layers [ max(weights / bandwidth,
FLOPs / peak) + cache / bandwidth + collectives ] + head; a prompt adds its rows to the products and its query-key pairs
to attention. Sources: roofline (Williams et al. 2009), ring all-reduce 2 (n-1)/n x bytes (Patarasuk and Yuan 2009),
sections 2, 4, 8 and 9 of the LLM inference guide.
"""

from dataclasses import dataclass, field, replace
from math import log2

from tonnage_core.engine.batch import Batch
from tonnage_core.engine.efficiency import measured_shares
from tonnage_core.hardware import GpuSpec
from tonnage_core.hardware.collectives import AllReduceCurve
from tonnage_core.hardware.peak import peak_tflops
from tonnage_core.models import ModelShape
from tonnage_core.moe import all_to_all_bytes, expert_coverage, imbalance
from tonnage_core.parallelism import Layout
from tonnage_core.prediction.coefficients import PREFILL_FIRST, Coefficients, coefficients_for, engine_key
from tonnage_core.prediction.operators import AttentionWork, ExpertProducts, Operators, Products, operators_of
from tonnage_core.quantization.formats import PRECISIONS, WeightFormat
from tonnage_core.quantization.plan import QuantizationPlan, Rule

_SLOW_PCIE_GBPS = 16.0
"""A card whose link is not published: PCIe 3.0 x16."""
NODE_GPUS = 8
"""GPUs that share one NVLink domain."""
NETWORK_GBPS = 50.0
"""Between nodes: one 400 Gbit/s adapter a GPU."""
SMALLEST_TILE, LARGEST_TILE = 16, 128
"""Rows a grouped product works on at once: kernels take a tile near an expert's own rows, which are padded to it."""


@dataclass(frozen=True, slots=True)
class _Rates:
    """Seconds of a byte or FLOP with the efficiencies in them; worked out once a model."""

    dense: tuple[tuple[float, float], ...]
    """(seconds of reading the weights, seconds a row) of each format."""
    head: tuple[float, float]
    experts: tuple[tuple[ExpertProducts, float, float], ...]
    """(counts, seconds of reading all experts, seconds of one choice)."""
    cache: float
    attention: float
    latent: float
    fixed: float
    prompt: float
    """Once a step with prompt tokens."""


@dataclass(frozen=True)
class StepModel:
    """A model on one replica's GPUs. Row counts are of the whole replica; with `dp` each rank attends to its share."""

    operators: Operators
    gpu: GpuSpec
    coefficients: Coefficients
    chunk: int = 8192
    """Prompt tokens that one step takes at most."""
    prefill_first: bool = False
    """Waiting prompts run before any decode step, not beside it."""
    all_reduce: AllReduceCurve | None = None
    """All-reduce times measured over this many ranks, instead of latency and bandwidth."""
    _rates: _Rates = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rates", self._worked_out())

    def decode_step_s(self, batch: float, context: float) -> float:
        """One token for each of `batch` sequences that hold `context` tokens on average."""
        return self.mixed_step_s(batch, batch * context, 0, 0)

    def prefill_s(self, tokens: float, context: float = 0) -> float:
        """A prompt of `tokens` after `context` cached ones, alone on the engine, in chunks; pipelined over stages."""
        if tokens <= 0:
            return 0.0
        steps = -(-tokens // self.chunk)
        part = tokens / steps
        # Work grows linearly with the context before a chunk, so the mean chunk stands for all.
        one = self.mixed_step_s(0, 0, part, context + (tokens - part) / 2)
        return one * (1 + (steps - 1) / self.operators.layout.pp)

    def mixed_step_s(
        self, decode_rows: float, decode_context_total: float, prefill_tokens: float, prefill_context: float
    ) -> float:
        """One step of `decode_rows` sequences (`decode_context_total` tokens cached in all) and one prompt chunk of
        `prefill_tokens` after `prefill_context`. With pipeline stages: one micro-batch through all of them."""
        layout, rates = self.operators.layout, self._rates
        rows, tokens = decode_rows / (layout.dp * layout.pp), prefill_tokens / layout.dp
        context = decode_context_total / decode_rows if decode_rows else 0.0
        total = rows + tokens
        seconds = self._host(rows)
        for read, row in rates.dense:
            seconds += self._both(read, total * row)
        seconds += self._both(rates.head[0], (rows + (1 if tokens else 0)) * rates.head[1])
        for part, read, choice in rates.experts:
            seconds += self._experts(part, read, choice, total * layout.dp)
        for work in self.operators.attention:
            if rows:
                seconds += self._decode_attention(work, rows, context)
            if tokens:
                seconds += self._prompt_attention(work, tokens, prefill_context)
        if tokens:
            seconds += rates.prompt
        return seconds + self._collectives(total)

    def parts(
        self, decode_rows: float, decode_context_total: float, prefill_tokens: float, prefill_context: float
    ) -> dict[str, float]:
        """The same step by operator, seconds; the values add up to `mixed_step_s`."""
        layout, rates = self.operators.layout, self._rates
        rows, tokens = decode_rows / (layout.dp * layout.pp), prefill_tokens / layout.dp
        context = decode_context_total / decode_rows if decode_rows else 0.0
        works = self.operators.attention
        return {
            "host_and_small_kernels": self._host(rows) + (rates.prompt if tokens else 0.0),
            "dense_products": sum(self._both(read, (rows + tokens) * row) for read, row in rates.dense),
            "output_head": self._both(rates.head[0], (rows + (1 if tokens else 0)) * rates.head[1]),
            "experts": sum(self._experts(*part, (rows + tokens) * layout.dp) for part in rates.experts),
            "decode_attention": sum(self._decode_attention(work, rows, context) for work in works) if rows else 0.0,
            "prompt_attention": sum(self._prompt_attention(work, tokens, prefill_context) for work in works)
            if tokens
            else 0.0,
            "collectives": self._collectives(rows + tokens),
        }

    def seconds(self, batch: Batch) -> float:
        """`StepClock` of the engine model."""
        rows, tokens = batch.decode_rows, batch.prefill_tokens
        before = 0.0
        if tokens:
            # Pairs are chunk x before + chunk (chunk + 1) / 2: the mean context of the batch's chunks.
            before = max(0.0, (batch.prefill_pairs - tokens * (tokens / max(1, batch.prefill_chunks) + 1) / 2) / tokens)
        return self.mixed_step_s(rows, batch.decode_context, tokens, before)

    def swap_seconds(self, tokens: int) -> float:
        """`StepClock` of the engine model: KV of `tokens` tokens over PCIe, one way."""
        gbps = (self.gpu.pcie_gbps or _SLOW_PCIE_GBPS) * 0.85 / measured_shares(self.gpu).pcie
        return tokens * self.operators.cache_bytes_per_token / (gbps * 1e9)

    def _worked_out(self) -> _Rates:
        work, rate, measured = self.operators, self.coefficients, measured_shares(self.gpu)
        band = self.gpu.hbm_gbps * 1e9 / measured.memory
        half = self.gpu.bf16_tflops * 1e12 / measured.gemm
        small = work.layers * rate.layer_s + work.expert_layers * rate.expert_layer_s
        small += work.recurrent_layers * rate.state_layer_s + work.sparse_layers * rate.sparse_layer_s
        small += work.latent_layers * rate.latent_layer_s
        return _Rates(
            dense=tuple(self._of(part, band) for part in work.products),
            head=self._of(work.head, band),
            experts=tuple(
                (
                    part,
                    part.weight_bytes / (band * rate.expert_memory),
                    part.flops_per_choice / (self._peak(part.stored) * rate.expert_gemm),
                )
                for part in work.experts
            ),
            cache=1 / (band * rate.cache),
            attention=1 / (half * rate.attention),
            latent=1 / (half * rate.latent),
            fixed=rate.step_s + small,
            prompt=work.layers * rate.prompt_layer_s + work.expert_layers * rate.prompt_expert_layer_s,
        )

    def _of(self, part: Products, band: float) -> tuple[float, float]:
        share = self.coefficients.memory_narrow if part.stored.bits < 8 else self.coefficients.memory
        return part.weight_bytes / (band * share), part.flops_per_row / self._peak(part.stored)

    def _peak(self, stored: WeightFormat) -> float:
        """FLOP/s that products of a format reach on large batches."""
        rate, peak = self.coefficients, peak_tflops(self.gpu, _computed(stored, self.gpu))
        share = rate.gemm
        if peak > self.gpu.bf16_tflops:
            share = rate.gemm_narrow if peak == self.gpu.fp4_tflops else rate.gemm_eight
        return peak * 1e12 / measured_shares(self.gpu).gemm * share

    def _host(self, rows: float) -> float:
        """Host work and small kernels: a part that grows with the logarithm of the rows, and one with the rows."""
        doublings = log2(rows) if rows > 1 else 0.0
        return self._rates.fixed * (1 + self.coefficients.growth * doublings) + rows * self.coefficients.row_s

    def _both(self, read: float, compute: float) -> float:
        """The longer of two, and what of the shorter does not hide behind it."""
        return max(read, compute) + self.coefficients.overlap * min(read, compute)

    def _experts(self, part: ExpertProducts, read: float, choice: float, rows: float) -> float:
        """Grouped products: the touched experts are read, and each works on its rows padded to tiles."""
        if rows <= 0:
            return 0.0
        whole = max(1, round(rows))
        busy = imbalance(whole, part.top_k, part.ranks)
        touched = expert_coverage(part.count, part.top_k, max(1.0, rows * self.coefficients.routing))
        held, chosen = touched * part.count / part.ranks, rows * part.top_k / part.ranks * busy
        padding = min(max(chosen / held, SMALLEST_TILE), LARGEST_TILE) / 2
        return self._both(read * touched, (chosen + held * padding) * choice)

    def _decode_attention(self, work: AttentionWork, rows: float, context: float) -> float:
        keys = work.keys(context)
        read = keys * work.key_bytes + context * work.scan_bytes + work.row_bytes
        flops = keys * work.pair_flops + context * work.scan_flops + work.row_flops
        return rows * self._both(
            read * self._rates.cache, flops * (self._rates.latent if work.kind == "latent" else self._rates.attention)
        )

    def _prompt_attention(self, work: AttentionWork, tokens: float, before: float) -> float:
        flops = work.pairs(tokens, before) * work.prefill_pair_flops + tokens * work.row_flops
        flops += tokens * (before + tokens / 2) * work.scan_flops
        return max((before + tokens) * work.key_bytes * self._rates.cache, flops * self._rates.attention)

    def _collectives(self, rows: float) -> float:
        """Two all-reduces a layer over tensor-parallel ranks; to and from experts where attention is data-parallel."""
        work, layout, rate = self.operators, self.operators.layout, self.coefficients
        message = rows * work.hidden * work.element_bytes
        seconds = 0.0
        if layout.tp > 1:
            seconds += 2 * work.layers * self._all_reduce_s(message, layout.tp)
        if layout.dp > 1 and work.experts:
            ranks = layout.tp * layout.dp
            moved = sum(
                2 * part.layers * all_to_all_bytes(max(1, round(rows)), 1, part.top_k, ranks, part.hidden_bytes)
                for part in work.experts
            )
            latency = 2 * work.expert_layers * rate.collective_s * _hops(ranks)
            seconds += latency + moved / layout.tp / (self._link(ranks) * rate.link)
        if layout.pp > 1:
            link = self._link(layout.pp * layout.tp) * rate.link
            seconds += (layout.pp - 1) * (rate.collective_s + message / link)
        return seconds

    def _all_reduce_s(self, size: float, ranks: int) -> float:
        if self.all_reduce is not None and self.all_reduce.ranks == ranks:
            return self.all_reduce.seconds(size)
        latency = self.coefficients.collective_s * _hops(ranks)
        return latency + all_reduce_bytes(size, ranks) / (self._link(ranks) * self.coefficients.link)

    def _link(self, ranks: int) -> float:
        """Bytes a second of one GPU to the others."""
        inside = self.gpu.nvlink_gbps or self.gpu.pcie_gbps or _SLOW_PCIE_GBPS
        return 1e9 * (inside if ranks <= NODE_GPUS else min(inside, NETWORK_GBPS))


def _computed(stored: WeightFormat, gpu: GpuSpec) -> WeightFormat:
    """MXFP4 multiplies with 8-bit activations on cards that have narrow tensor cores, with 16-bit ones elsewhere."""
    return PRECISIONS["fp8"] if stored.name == "mxfp4" and gpu.fp4_tflops else stored


def _hops(ranks: int) -> float:
    """Latency of a collective over that over two ranks: each rank has one more buffer to wait for and to add."""
    return 1 + 0.1 * (ranks - 2)


def all_reduce_bytes(size: float, ranks: int) -> float:
    """Bytes each rank sends in a ring all-reduce of a `size` byte message: 2 (n - 1) / n x size."""
    return 2 * (ranks - 1) / ranks * size


def in_precision(shape: ModelShape, precision: str) -> ModelShape:
    """A plain checkpoint as it would be in a named precision; one that is quantised already keeps its own."""
    stored = PRECISIONS.get(precision)
    if stored is None or precision in ("bf16", "fp16", "fp32") or shape.quantization.rules:
        return shape
    plan = QuantizationPlan(precision, (Rule(stored),), kv_cache=shape.quantization.kv_cache)
    return replace(shape, quantization=plan)


def step_model(
    shape: ModelShape,
    gpu: GpuSpec,
    *,
    layout: Layout | None = None,
    engine: str = "vllm",
    engine_version: str = "",
    kv_dtype: str = "auto",
    precision: str = "auto",
    max_num_batched_tokens: int = 8192,
    coefficients: Coefficients | None = None,
) -> StepModel:
    """The step times of a model on a replica of `layout.gpus` cards, with the coefficients fitted for the engine.

    `precision`: auto (what the checkpoint says) or a weight format for a plain one. `gpu` may be a catalogue entry or
    come from a GpuProfile, whose measured ceilings and all-reduces then count.
    """
    placed = layout or Layout()
    counts = operators_of(in_precision(shape, precision), placed, kv_dtype)
    rates = coefficients or coefficients_for(engine, gpu)
    curve = next((one for one in gpu.all_reduces if one.ranks == placed.tp), None)
    prefill_first = engine_key(engine) in PREFILL_FIRST
    return StepModel(counts, gpu, rates, max_num_batched_tokens, prefill_first, curve)
