"""Seconds of one step: the roofline of every operator, added up, since a step's kernels run one after another.

decode step = host + sum over layers [ small kernels + max(weights / bandwidth, FLOPs / peak) + cache / bandwidth
+ collectives ] + head; a prompt adds its rows to the products and its query-key pairs to attention. Sources: roofline
(Williams et al. 2009), ring all-reduce 2 (n-1)/n x bytes (Patarasuk and Yuan 2009), sections 2, 4, 8 and 9 of the LLM
inference guide.
"""

from dataclasses import dataclass, field, replace

from tonnage_core.engine.batch import Batch
from tonnage_core.engine.efficiency import measured_shares
from tonnage_core.hardware import GpuSpec
from tonnage_core.hardware.peak import peak_tflops
from tonnage_core.models import ModelShape
from tonnage_core.moe import all_to_all_bytes, expert_coverage, imbalance
from tonnage_core.parallelism import Layout
from tonnage_core.prediction.coefficients import Coefficients, coefficients_for
from tonnage_core.prediction.operators import AttentionWork, ExpertProducts, Operators, Products, operators_of
from tonnage_core.quantization.formats import PRECISIONS, WeightFormat
from tonnage_core.quantization.plan import QuantizationPlan, Rule

_SLOW_PCIE_GBPS = 16.0
"""A card whose link is not published: PCIe 3.0 x16."""
NODE_GPUS = 8
"""GPUs that share one NVLink domain."""
NETWORK_GBPS = 50.0
"""Between nodes: one 400 Gbit/s adapter a GPU."""


@dataclass(frozen=True)
class StepModel:
    """A model on one replica's GPUs. Row counts are of the whole replica; with `dp` each rank attends to its share."""

    operators: Operators
    gpu: GpuSpec
    coefficients: Coefficients
    chunk: int = 8192
    """Prompt tokens that one step takes at most."""
    _read: float = field(init=False)
    _cache: float = field(init=False)

    def __post_init__(self) -> None:
        scale = measured_shares(self.gpu)
        object.__setattr__(self, "_read", self.gpu.hbm_gbps * 1e9 / scale.memory)
        object.__setattr__(self, "_cache", self.gpu.hbm_gbps * 1e9 / scale.memory * self.coefficients.cache)

    def decode_step_s(self, batch: float, context: float) -> float:
        """One token for each of `batch` sequences that hold `context` tokens on average."""
        return self.mixed_step_s(batch, batch * context, 0, 0)

    def prefill_s(self, tokens: int, context: int = 0) -> float:
        """A prompt of `tokens` after `context` cached ones, alone on the engine, in chunks; pipelined over stages."""
        if tokens <= 0:
            return 0.0
        steps, stages = -(-tokens // self.chunk), self.operators.layout.pp
        part = tokens / steps
        total = sum(self.mixed_step_s(0, 0, part, context + index * part) for index in range(steps))
        return total / steps * (1 + (steps - 1) / stages)

    def mixed_step_s(
        self, decode_rows: float, decode_context_total: float, prefill_tokens: float, prefill_context: float
    ) -> float:
        """One step of `decode_rows` sequences (`decode_context_total` tokens cached in all) and one prompt chunk of
        `prefill_tokens` after `prefill_context`. With pipeline stages: one micro-batch through all of them."""
        layout, rate = self.operators.layout, self.coefficients
        share = layout.dp * layout.pp
        rows, tokens = decode_rows / share, prefill_tokens / layout.dp
        context = decode_context_total / decode_rows if decode_rows else 0.0
        total = rows + tokens
        seconds = rate.step_s + rows * rate.row_s + self._small_kernels()
        seconds += sum(self._products(part, total) for part in self.operators.products)
        sampled = rows + (1 if prefill_tokens else 0)
        seconds += self._products(self.operators.head, sampled)
        seconds += sum(self._experts(part, total * layout.dp) for part in self.operators.experts)
        seconds += sum(
            self._attention(part, rows, context, tokens, prefill_context) for part in self.operators.attention
        )
        if prefill_tokens:
            seconds += rate.prompt_s
        return seconds + self._collectives(total)

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

    def _small_kernels(self) -> float:
        work, rate = self.operators, self.coefficients
        seconds = work.layers * rate.layer_s + work.expert_layers * rate.expert_layer_s
        return seconds + work.recurrent_layers * rate.state_layer_s

    def _peak(self, stored: WeightFormat) -> float:
        """FLOP/s that products of a format reach on large batches."""
        peak = peak_tflops(self.gpu, stored) * 1e12 / measured_shares(self.gpu).gemm
        narrow = stored.activation_bits == 4 and self.gpu.fp4_tflops
        return peak * (self.coefficients.gemm_narrow if narrow else self.coefficients.gemm)

    def _products(self, part: Products, rows: float) -> float:
        if rows <= 0:
            return 0.0
        read = part.weight_bytes / (self._read * self.coefficients.memory)
        return max(read, rows * part.flops_per_row / self._peak(part.stored))

    def _experts(self, part: ExpertProducts, rows: float) -> float:
        if rows <= 0:
            return 0.0
        rate = self.coefficients
        busy = imbalance(max(1, round(rows)), part.top_k, part.ranks)
        touched = min(1.0, expert_coverage(part.count, part.top_k, max(1, round(rows))) * busy)
        read = part.weight_bytes * touched / (self._read * rate.expert_memory)
        flops = rows * part.top_k / part.ranks * busy * part.flops_per_choice
        return max(read, flops / (self._peak(part.stored) * rate.expert_gemm / rate.gemm))

    def _attention(self, part: AttentionWork, rows: float, context: float, tokens: float, before: float) -> float:
        peak = self.gpu.bf16_tflops * 1e12 / measured_shares(self.gpu).gemm * self.coefficients.attention
        read = rows * (part.keys(context) * part.key_bytes + context * part.scan_bytes + part.row_bytes)
        flops = rows * (part.keys(context) * part.pair_flops + context * part.scan_flops + part.row_flops)
        seconds = max(read / self._cache, flops / peak)
        if tokens:
            whole = tokens * (before + tokens / 2)
            flops = part.pairs(tokens, before) * part.prefill_pair_flops + whole * part.scan_flops
            flops += tokens * part.row_flops
            seconds += max((before + tokens) * part.key_bytes / self._cache, flops / peak)
        return seconds

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
            seconds += (layout.pp - 1) * (rate.collective_s + message / (self._link(layout.pp * layout.tp) * rate.link))
        return seconds

    def _all_reduce_s(self, size: float, ranks: int) -> float:
        latency = self.coefficients.collective_s * _hops(ranks)
        return latency + all_reduce_bytes(size, ranks) / (self._link(ranks) * self.coefficients.link)

    def _link(self, ranks: int) -> float:
        """Bytes a second of one GPU to the others."""
        inside = self.gpu.nvlink_gbps or self.gpu.pcie_gbps or _SLOW_PCIE_GBPS
        return 1e9 * (inside if ranks <= NODE_GPUS else min(inside, NETWORK_GBPS))


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
    return replace(
        shape, quantization=QuantizationPlan(precision, (Rule(stored),), kv_cache=shape.quantization.kv_cache)
    )


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
    come from a GpuProfile, whose measured ceilings then count.
    """
    placed = layout or Layout()
    counts = operators_of(in_precision(shape, precision), placed, kv_dtype)
    return StepModel(counts, gpu, coefficients or coefficients_for(engine), max_num_batched_tokens)
