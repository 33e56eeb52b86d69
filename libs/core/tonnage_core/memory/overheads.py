"""Memory beside weights and profile run: context, communication, graphs, adapters, drafts, kernels' padding."""

from math import ceil

from tonnage_core.hardware import GpuSpec
from tonnage_core.kv_cache.versions import EngineFacts
from tonnage_core.memory.constants import FittedConstants
from tonnage_core.memory.request import Adapters, Speculation
from tonnage_core.memory.steps import Derivation
from tonnage_core.models.inventory import layer_tensors
from tonnage_core.models.layers import Experts, Mixer, RecurrentState
from tonnage_core.models.shape import ModelShape
from tonnage_core.models.tensors import Split
from tonnage_core.models.weights import local_shape, stage_weights, tensor_bytes
from tonnage_core.parallelism import Layout
from tonnage_core.quantization.formats import WeightFormat
from tonnage_core.units import GIB, MIB

NVSWITCH_GBPS = 200
"""NVLink of one direction in GB/s from which cards sit behind NVSwitch; bridges of consumer cards have 56."""


def fused_all_reduce(gpu: GpuSpec | None) -> bool:
    """Whether engines set up symmetric-memory and fused all-reduce buffers: Hopper and later behind NVSwitch."""
    return gpu is None or (gpu.fp8_tflops is not None and (gpu.nvlink_gbps or 0) >= NVSWITCH_GBPS)


def non_torch_bytes(
    facts: EngineFacts, layout: Layout, gpu: GpuSpec | None, constants: FittedConstants, log: Derivation
) -> float:
    """Growth of memory outside torch while loading and profiling: context, NCCL, all-reduce buffers."""
    ranks = layout.tp
    value = facts.non_torch_gib if constants.non_torch is None else constants.non_torch
    group = facts.non_torch_group_gib if constants.non_torch_group is None else constants.non_torch_group
    formula = f"{value} GiB context and libraries"
    if ranks > 1 and fused_all_reduce(gpu):
        value = group + facts.non_torch_rank_gib * (ranks - 2)
        formula = f"{group} GiB with communication + {ranks - 2} x {facts.non_torch_rank_gib} GiB"
    elif ranks > 1 and group > value:
        value += facts.non_torch_pipeline_gib
        formula += f" + {facts.non_torch_pipeline_gib} GiB NCCL"
    if layout.pp > 1:
        value += facts.non_torch_pipeline_gib
        formula += f" + {facts.non_torch_pipeline_gib} GiB between stages"
    if layout.dp > 1 and layout.ep > 1:
        value += facts.non_torch_pipeline_gib
        formula += f" + {facts.non_torch_pipeline_gib} GiB between expert ranks"
    return log.gib("non_torch", formula, value * GIB)


GRAPH_LARGEST_BATCH = 512
"""Batches above this size are not captured."""


def graph_bytes(
    shape: ModelShape,
    layers: range,
    sequences: int,
    *,
    eager: bool,
    transient: float,
    constants: FittedConstants,
    log: Derivation,
) -> float:
    """The pool of captured graphs: a base, and one launch record a layer and captured size.

    `transient`: bytes of the forward peak when the release books part of it as graphs, else 0.
    """
    if eager:
        return log.gib("cuda_graphs", "enforce_eager: none", 0.0)
    networks = [shape.stack[index].network for index in layers]
    chosen = sum(network.top_k for network in networks if isinstance(network, Experts))
    share = capture_sizes(sequences) / capture_sizes(GRAPH_LARGEST_BATCH)
    value = share * (constants.graph_base + constants.graph_layer * len(layers) + constants.graph_choice * chosen)
    formula = (
        f"{share:.2f} of all batch sizes x ({constants.graph_base} + {constants.graph_layer} x {len(layers)} layers"
        f" + {constants.graph_choice} x {chosen} chosen experts) GiB"
    )
    if transient and any(isinstance(shape.stack[index].mixer, RecurrentState) for index in layers):
        value += constants.graph_transient * transient / GIB
        formula += f" + {constants.graph_transient} x forward {transient / GIB:.3f} GiB"
    return log.gib("cuda_graphs", formula, value * GIB)


def capture_sizes(sequences: int) -> int:
    """Batch sizes captured: 1, 2, 4, then steps of 8 to 256 and of 16 to 512, up to twice the sequences."""
    largest = min(2 * sequences, GRAPH_LARGEST_BATCH)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, GRAPH_LARGEST_BATCH + 1, 16)]
    return sum(size <= largest for size in sizes)


def adapter_bytes(shape: ModelShape, layout: Layout, layers: range, adapters: Adapters, log: Derivation) -> float:
    """LoRA slots: rank x (inputs + outputs) of every projection but experts, in 16 bit, allocated at start."""
    elements = 0
    for index in layers:
        for tensor in layer_tensors(shape.stack[index], shape.hidden):
            if not tensor.linear or tensor.split in (Split.EXPERT_ROWS, Split.EXPERT_COLUMNS):
                continue
            rows, columns, _ = local_shape(tensor, layout)
            elements += rows + columns
    return log.gib(
        "adapter_slots",
        f"{adapters.slots} slots x rank {adapters.rank} x {elements:,} inputs and outputs x 2 B",
        adapters.slots * adapters.rank * elements * 2,
    )


def adapter_parameters(shape: ModelShape, rank: int) -> int:
    """Parameters of one LoRA adapter on every projection but experts."""
    tensors = [tensor for layer in shape.stack for tensor in layer_tensors(layer, shape.hidden)]
    kept = [t for t in tensors if t.linear and t.split not in (Split.EXPERT_ROWS, Split.EXPERT_COLUMNS)]
    return rank * sum(tensor.rows + tensor.columns for tensor in kept)


def draft_bytes(shape: ModelShape, layout: Layout, dense: WeightFormat, plan: Speculation, log: Derivation) -> float:
    """Weights of the draft on the last stage: a whole model, or the prediction layers with their projection."""
    if plan.draft is not None:
        one = Layout(tp=layout.tp)
        total = sum(stage.total for stage in stage_weights(plan.draft, one))
        return log.gib("draft_model", f"{plan.draft.name} on {layout.tp} ranks", total)
    if not plan.layers:
        return 0.0
    formats = shape.layer_formats(shape.layers - 1, dense)
    tensors = zip(layer_tensors(shape.stack[-1], shape.hidden), formats, strict=True)
    layer = sum(tensor_bytes(tensor, stored, dense, layout) for tensor, stored in tensors)
    joined = 2 * shape.hidden * shape.hidden * dense.bits / 8
    formula = f"{plan.layers} layers like the last one + 2 x {shape.hidden:,}^2 joined"
    return log.gib("draft_layers", formula, plan.layers * (layer + joined))


def draft_mixers(shape: ModelShape, plan: Speculation | None) -> tuple[Mixer, ...]:
    """The layers of the draft that cache."""
    if plan is None:
        return ()
    if plan.draft is not None:
        return tuple(layer.mixer for layer in plan.draft.stack if layer.mixer is not None)
    mixers = [layer.mixer for layer in shape.stack]
    attention = [mixer for mixer in mixers if mixer is not None and not isinstance(mixer, RecurrentState)]
    return tuple(attention[-1:]) * plan.layers


def kernel_padding(shape: ModelShape, layout: Layout, facts: EngineFacts, layers: range, log: Derivation) -> float:
    """What MXFP4 kernels add to expert weights: padded input columns, or both sides in older kernels."""
    if shape.quantization.method != "mxfp4":
        return 0.0
    total = 0.0
    for index in layers:
        network = shape.stack[index].network
        if isinstance(network, Experts):
            copies = ceil(network.count / layout.ep)
            wide = ceil(network.intermediate / layout.expert_tp)
            total += copies * (_padded_expert(shape.hidden, wide, facts.mxfp4_padding) - _expert(shape.hidden, wide))
    if total < MIB:
        return 0.0
    return log.gib("kernel_padding", f"MXFP4 experts, {facts.mxfp4_padding} padded", total)


def _expert(hidden: int, wide: int) -> float:
    """Bytes of one expert: 4-bit values and one scale byte for 32."""
    return 3 * hidden * wide * (0.5 + 1 / 32)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def _padded_expert(hidden: int, wide: int, padding: str) -> float:
    if padding == "kernel":
        return _expert(_up(hidden, 256), _up(wide, 128))
    # Values keep padded columns, scales do not.
    wide = _up(wide, 64)
    values = 2 * wide * _up(hidden, 256) + hidden * _up(wide, 256)
    return values * 0.5 + 3 * hidden * wide / 32
