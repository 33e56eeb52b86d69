"""The peak of torch memory above the weights in an engine's profile run.

The engine runs one dummy batch and keeps the peak. Two moments compete: the widest layer of the forward pass over
max_num_batched_tokens, and sampling for max_num_seqs rows of the whole vocabulary. Buffers that outlive both (expert
workspaces, encoder outputs and inputs) come on top. Each term is bytes of named tensors; the only fitted constant is
`FittedConstants.activation_fixed`. Sources: vLLM `v1/worker/gpu_model_runner.py`, `v1/sample`, `fused_moe`
(Apache-2.0), facts only.
"""

from dataclasses import dataclass
from math import ceil

from tonnage_core.kv_cache.versions import EngineFacts
from tonnage_core.memory.constants import FITTED, FittedConstants
from tonnage_core.memory.steps import Derivation
from tonnage_core.models.layers import (
    Attention,
    CompressedAttention,
    Dense,
    Experts,
    LatentAttention,
    Layer,
    RecurrentState,
)
from tonnage_core.models.shape import ModelShape
from tonnage_core.parallelism import Layout, local_heads
from tonnage_core.units import MIB


@dataclass(frozen=True)
class ActivationPeak:
    """Bytes at the peak on one rank; `moment`: forward, sampler or encoder."""

    total: float
    moment: str
    forward: float


def activation_peak(
    shape: ModelShape,
    layout: Layout,
    facts: EngineFacts,
    *,
    tokens: int,
    sequences: int,
    context_rows: int = 0,
    multimodal: bool = True,
    first: bool = True,
    last: bool = True,
    constants: FittedConstants = FITTED,
    derivation: Derivation | None = None,
) -> ActivationPeak:
    """Peak of one pipeline stage; encoders run on the first stage and sampling on the last."""
    log = derivation or Derivation()
    size = shape.element_bytes
    formula = f"{tokens:,} tokens x {shape.hidden:,} hidden x {size} B"
    hidden = log.gib("hidden_states", formula, tokens * shape.hidden * size)
    workspace = _expert_workspace(shape, layout, tokens, facts, log)
    context = _latent_context(shape, layout, context_rows, log)
    moments = {"forward": _forward(shape, layout, tokens, workspace > 0, log) + context}
    if last and facts.sampler_bytes:
        moments["sampler"] = hidden + _sampler(shape, facts, min(sequences, tokens), log)
    kept = workspace
    if first and multimodal and shape.encoders:
        held, peak = _encoders(shape, layout, tokens, log)
        kept += held
        moments["encoder"] = peak
    moment = max(moments, key=lambda name: moments[name])
    total = (moments[moment] + kept + constants.activation_fixed) * facts.reserved_factor
    parts = (
        f"largest of {', '.join(moments)} ({moment}) + kept buffers + {constants.activation_fixed / MIB:.0f} MiB fixed"
    )
    log.gib("activation_peak", parts + (f", x {facts.reserved_factor:g}" if facts.reserved_factor != 1 else ""), total)
    return ActivationPeak(total, moment, moments["forward"])


def _sampler(shape: ModelShape, facts: EngineFacts, rows: int, log: Derivation) -> float:
    """Logits of every row: 16 bit, float32, and the copies sampling makes; top-k keeps a few more rows."""
    vocab = ceil(shape.vocab / 64) * 64
    return log.gib(
        "sampler",
        f"{rows:,} rows x {vocab:,} logits x {facts.sampler_bytes:g} B + {facts.sampler_rows} x {vocab:,} x 4 B",
        vocab * (rows * facts.sampler_bytes + facts.sampler_rows * 4),
    )


def _forward(shape: ModelShape, layout: Layout, tokens: int, workspace: bool, log: Derivation) -> float:
    """The widest layer: projections in, their product, and three hidden-size tensors (input, residual, output)."""
    widest = max((_layer_elements(shape, layer, layout, workspace) for layer in shape.distinct_layers), default=0.0)
    size = shape.element_bytes
    return log.gib("forward", f"{tokens:,} tokens x {widest:,.0f} live elements x {size} B", tokens * widest * size)


def _latent_context(shape: ModelShape, layout: Layout, rows: int, log: Derivation) -> float:
    """Keys and values of earlier chunks that latent attention expands for a prefill; sparse kernels expand none."""
    found = [layer.mixer for layer in shape.distinct_layers if isinstance(layer.mixer, LatentAttention)]
    widest = max((one.heads * (one.nope_dim + one.v_head_dim) for one in found if one.indexer is None), default=0)
    if not widest or not rows:
        return 0.0
    wide = widest // layout.tp
    formula = f"{rows:,} rows x {wide:,} expanded x {shape.element_bytes} B"
    return log.gib("latent_context", formula, rows * wide * shape.element_bytes)


def context_rows(facts: EngineFacts, max_model_len: int, sequences: int, block: int) -> int:
    """Rows of the chunked-prefill workspace: eight full sequences, at most 65,536, at least a page a sequence.

    Source: vLLM `v1/attention/backends/mla/common.py` (Apache-2.0), facts only.
    """
    if facts.engine != "vllm" or not facts.sampler_bytes:
        return 0
    return max(min(max(8 * max_model_len, 4 * sequences * block), 1 << 16), sequences * block)


def _layer_elements(shape: ModelShape, layer: Layer, layout: Layout, workspace: bool) -> float:
    """Elements alive for one token in the widest half of a layer."""
    return 3 * shape.hidden + max(_mixer_elements(layer, layout), _network_elements(shape, layer, layout, workspace))


def _network_elements(shape: ModelShape, layer: Layer, layout: Layout, workspace: bool) -> float:
    """Projections of the network; the expert rows are left out where a workspace of their own holds them."""
    network = layer.network
    if isinstance(network, Dense):
        wide = network.intermediate / layout.tp
        copies = 3 if network.gated else 2
        return wide * copies + wide * _quantised_share(shape)
    if isinstance(network, Experts):
        shared = network.shared / layout.tp * 3
        return shared + (0 if workspace else sum(_expert_rows(shape, network, layout)) * network.top_k)
    return 0.0


def _quantised_share(shape: ModelShape) -> float:
    """Inputs of 8-bit products are kept beside the 16-bit ones: half an element more."""
    rules = shape.quantization.rules
    return 0.5 if rules and rules[-1].weights.activation_bits == 8 else 0.0


def _expert_rows(shape: ModelShape, network: Experts, layout: Layout) -> tuple[float, float]:
    """Elements of the two workspaces for one chosen expert of one token."""
    inside = network.latent or shape.hidden
    wide = ceil(network.intermediate / layout.expert_tp)
    doubled = wide * (2 if network.gated else 1)
    return max(wide, inside), max(doubled, inside)


def _mixer_elements(layer: Layer, layout: Layout) -> float:
    mixer, tp = layer.mixer, layout.tp
    if isinstance(mixer, Attention):
        keys = local_heads(mixer.kv_heads, tp) * (mixer.head_dim + mixer.v_head_dim)
        return 3 * mixer.heads * mixer.head_dim / tp + keys
    if isinstance(mixer, LatentAttention):
        return 3 * mixer.heads * (mixer.nope_dim + mixer.rope_dim + mixer.v_head_dim) / tp
    if isinstance(mixer, CompressedAttention):
        return 3 * mixer.heads * mixer.head_dim / tp
    if isinstance(mixer, RecurrentState):
        # Convolution in and out, gates, and one float32 state for every chunk of 64 tokens.
        inner = mixer.heads * max(mixer.key_dim, mixer.value_dim)
        return (2 * mixer.conv_channels + 4 * inner + inner * mixer.key_dim / 32) / tp
    return 0.0


def _expert_workspace(shape: ModelShape, layout: Layout, tokens: int, facts: EngineFacts, log: Derivation) -> float:
    """Workspaces of the modular expert kernels stay allocated; the MXFP4 kernels bring their own."""
    if not facts.experts_workspace or shape.quantization.method == "mxfp4":
        return 0.0
    size = shape.element_bytes
    found = [layer.network for layer in shape.distinct_layers if isinstance(layer.network, Experts)]
    if not found:
        return 0.0
    network = max(found, key=lambda one: sum(_expert_rows(shape, one, layout)) * one.top_k)
    first, second = _expert_rows(shape, network, layout)
    return log.gib(
        "expert_workspace",
        f"{tokens:,} tokens x {network.top_k} experts x ({first:,.0f} + {second:,.0f}) x {size} B",
        tokens * network.top_k * (first + second) * size,
    )


def _encoders(shape: ModelShape, layout: Layout, tokens: int, log: Derivation) -> tuple[float, float]:
    """(outputs and inputs of a full encoder budget that stay alive, peak while the largest tower runs)."""
    held = peak = 0.0
    size = shape.element_bytes
    for encoder in shape.encoders:
        items = max(1, max(tokens, encoder.item_tokens) // encoder.item_tokens)
        wide = shape.hidden * encoder.output_copies
        # Deep layers also keep an input buffer of a whole step each.
        outputs = (items * encoder.item_tokens * wide + tokens * (wide - shape.hidden)) * size
        inputs = items * encoder.item_elements * size
        formula = f"({encoder.item_tokens:,} embeddings x {wide:,} + {encoder.item_elements:,} inputs) x {size} B"
        held += log.gib(f"{encoder.kind}_budget", f"{items} items x {formula}", outputs + inputs)
        alive = encoder.hidden_elements + encoder.wide_elements / layout.tp
        peak = max(peak, items * encoder.item_patches * alive * size)
    if peak:
        log.gib("encoder_forward", "largest tower over the same items", peak)
    return held, peak
