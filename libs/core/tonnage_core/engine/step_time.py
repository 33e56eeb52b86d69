"""Step time from the roofline of a named GPU and model.

One step is a sequence of kernels, so its parts add up: the linear layers (limited by reading the weights or by their
FLOPs, whichever is slower), attention of decode rows (limited by reading their keys and values), attention of prefill
chunks (limited by FLOPs or by reading their context), the output head, tensor-parallel all-reduces, and a fixed cost a
kernel and a step.
"""

from dataclasses import dataclass, field

from tonnage_core.engine.batch import Batch
from tonnage_core.engine.efficiency import Efficiency, efficiency_for
from tonnage_core.hardware import GpuSpec
from tonnage_core.hardware.peak import peak_tflops
from tonnage_core.models import ModelShape
from tonnage_core.models.inventory import layer_tensors
from tonnage_core.models.layers import Attention, CompressedAttention, Experts, LatentAttention
from tonnage_core.models.weights import stage_weights
from tonnage_core.parallelism import Layout
from tonnage_core.quantization.formats import WeightFormat


@dataclass(frozen=True, slots=True)
class StepTime:
    """A model on one engine's GPUs, as the numbers a step depends on. Bytes and FLOPs are per rank."""

    weight_bytes: float
    """Read in every step: all but input embeddings and experts."""
    expert_bytes: float
    experts: int
    experts_per_token: int
    flops_per_token: float
    head_flops: float
    """Of one sampled row."""
    pair_flops: float
    """Of one query-key pair through all layers: scores and values."""
    kv_bytes_per_token: float
    peak_flops: float
    attention_flops: float
    """Peak of the precision that attention runs in."""
    hbm_bytes_s: float
    pcie_bytes_s: float
    link_bytes_s: float
    all_reduces: int
    row_bytes: float
    """Message of one all-reduce and row."""
    layers: int
    efficiency: Efficiency
    _read: float = field(init=False)
    _compute: float = field(init=False)
    _attend: float = field(init=False)
    _fixed: float = field(init=False)
    """Rates and fixed cost with the efficiencies in them, worked out once: a long run asks for millions of steps."""

    def __post_init__(self) -> None:
        rate = self.efficiency
        derived = {
            "_read": self.hbm_bytes_s * rate.memory,
            "_compute": self.peak_flops * rate.gemm,
            "_attend": self.attention_flops * rate.attention,
            "_fixed": self.layers * rate.kernels_per_layer * rate.kernel_s + rate.step_s,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def seconds(self, batch: Batch) -> float:
        """Time of one iteration."""
        rows = batch.decode_rows + batch.prefill_tokens
        flops = rows * self.flops_per_token + batch.sampled_rows * self.head_flops
        read = self._weights_read(rows) if self.experts else self.weight_bytes
        seconds = max(read / self._read, flops / self._compute) + self._fixed
        seconds += batch.decode_context * self.kv_bytes_per_token / self._read
        if batch.prefill_tokens:
            context = batch.prefill_context * self.kv_bytes_per_token / self._read
            seconds += max(context, batch.prefill_pairs * self.pair_flops / self._attend)
        return seconds + self._all_reduce(rows) if self.all_reduces else seconds

    def swap_seconds(self, tokens: int) -> float:
        """Time to move the KV of `tokens` tokens over PCIe, one way."""
        return tokens * self.kv_bytes_per_token / (self.pcie_bytes_s * self.efficiency.pcie)

    def _weights_read(self, rows: int) -> float:
        missed = (1 - self.experts_per_token / self.experts) ** rows
        return self.weight_bytes + self.expert_bytes * (1 - missed)

    def _all_reduce(self, rows: int) -> float:
        rate = self.efficiency
        return self.all_reduces * (rate.all_reduce_s + rows * self.row_bytes / (self.link_bytes_s * rate.link))


def step_time_for(
    shape: ModelShape,
    gpu: GpuSpec,
    *,
    tp: int = 1,
    kv_dtype: str = "auto",
    efficiency: Efficiency | None = None,
) -> StepTime:
    """The step time of `shape` split over `tp` GPUs of one kind; weights in the formats that the checkpoint names.

    Every attention layer is taken to see the whole context, windows or not, as the engine model keeps all of it.
    """
    (weights,) = stage_weights(shape, Layout(tp))
    read_rows = weights.embedding if shape.tied_embeddings else weights.head
    head = shape.vocab * shape.hidden
    experts, per_token = _experts(shape)
    return StepTime(
        weight_bytes=weights.decoder + read_rows,
        expert_bytes=weights.experts,
        experts=experts,
        experts_per_token=per_token,
        flops_per_token=2 * max(shape.active_parameters - head, 0) / tp,
        head_flops=2 * head / tp,
        pair_flops=sum(_pair_flops(layer.mixer) for layer in shape.stack) / tp,
        kv_bytes_per_token=shape.kv_bytes_per_token(kv_dtype, tp),
        peak_flops=peak_tflops(gpu, _widest_format(shape)) * 1e12,
        attention_flops=gpu.bf16_tflops * 1e12,
        hbm_bytes_s=gpu.hbm_gbps * 1e9,
        pcie_bytes_s=(gpu.pcie_gbps or _SLOW_PCIE_GBPS) * 1e9,
        link_bytes_s=(gpu.nvlink_gbps or gpu.pcie_gbps or _SLOW_PCIE_GBPS) * 1e9,
        all_reduces=2 * shape.layers if tp > 1 else 0,
        row_bytes=2 * (tp - 1) / tp * shape.hidden * shape.element_bytes,
        layers=shape.layers,
        efficiency=efficiency or efficiency_for(gpu),
    )


_SLOW_PCIE_GBPS = 16.0
"""A card whose link is not published: PCIe 3.0 x16."""


def _experts(shape: ModelShape) -> tuple[int, int]:
    for layer in shape.stack:
        if isinstance(layer.network, Experts):
            return layer.network.count, layer.network.top_k
    return 0, 0


def _pair_flops(mixer: object) -> float:
    """FLOPs of one query-key pair in one layer: a multiply and an add for each score and value element."""
    if isinstance(mixer, Attention):
        return 2 * mixer.heads * (mixer.head_dim + mixer.v_head_dim)
    if isinstance(mixer, LatentAttention):
        return 2 * mixer.heads * (mixer.nope_dim + mixer.rope_dim + mixer.v_head_dim)
    if isinstance(mixer, CompressedAttention):
        return 4 * mixer.heads * mixer.head_dim
    return 0.0


def _widest_format(shape: ModelShape) -> WeightFormat:
    """The format that most of a layer's weights have."""
    middle = shape.layers // 2
    tensors = layer_tensors(shape.stack[middle], shape.hidden)
    formats = shape.layer_formats(middle, shape.dense_format)
    return max(zip(tensors, formats, strict=True), key=lambda pair: pair[0].parameters)[1]
