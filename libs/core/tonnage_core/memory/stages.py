"""What one rank of each pipeline stage holds: weights, extras, activation peak, overheads, and what the pool gets."""

from dataclasses import dataclass, replace

from tonnage_core.memory.activation import activation_peak, context_rows
from tonnage_core.memory.flags import Flags
from tonnage_core.memory.overheads import adapter_bytes, draft_bytes, graph_bytes, kernel_padding, non_torch_bytes
from tonnage_core.memory.request import MemoryRequest
from tonnage_core.memory.steps import Derivation
from tonnage_core.models.shape import ModelShape
from tonnage_core.models.weights import StageWeights, stage_weights
from tonnage_core.quantization.formats import WeightFormat
from tonnage_core.units import GIB


@dataclass(frozen=True)
class StageMemory:
    """Bytes on one rank of a stage; `pool` may be negative, which means it does not fit."""

    stage: int
    layers: int
    weights: float
    extras: float
    activation: float
    non_torch: float
    graphs: float
    pool: float | None

    @property
    def non_kv(self) -> float:
        """Everything the engine counts against the pool; graphs only where the release does."""
        return self.weights + self.extras + self.activation + self.non_torch


def all_stages(
    request: MemoryRequest, shape: ModelShape, flags: Flags, bounds: list[tuple[int, int]]
) -> tuple[tuple[StageMemory, ...], tuple[Derivation, ...]]:
    """Memory of every pipeline stage, and how each was derived."""
    layout, facts = request.layout, flags.facts
    block = request.block_size or facts.block
    rows = context_rows(facts, flags.max_model_len, flags.max_num_seqs, block)
    found, traces = [], []
    for index, weights in enumerate(stage_weights(shape, layout, flags.dense)):
        trace = Derivation()
        first, last = index == 0, index == layout.pp - 1
        layers = range(*bounds[index])
        padding = kernel_padding(shape, layout, facts, layers, trace)
        total = trace.gib("weights", _weights_formula(weights), weights.total + padding)
        extras = _extras(request, shape, flags.dense, layers, last, trace)
        peak = activation_peak(
            shape,
            layout,
            facts,
            tokens=flags.batched_tokens,
            sequences=flags.max_num_seqs,
            context_rows=rows,
            multimodal=request.multimodal,
            first=first,
            last=last,
            constants=request.constants,
            derivation=trace,
        )
        outside = non_torch_bytes(facts, layout, request.gpu, request.constants, trace)
        graphs = graph_bytes(
            shape,
            layers,
            flags.max_num_seqs,
            eager=request.enforce_eager,
            transient=peak.forward if facts.graph_transient else 0.0,
            constants=request.constants,
            log=trace,
        )
        stage = StageMemory(index, len(layers), total, extras, peak.total, outside, graphs, None)
        found.append(replace(stage, pool=_pool(request, flags, stage, trace)))
        traces.append(trace)
    return tuple(found), tuple(traces)


def _weights_formula(weights: StageWeights) -> str:
    parts = {
        "decoder": weights.decoder,
        "experts": weights.experts,
        "embedding": weights.embedding,
        "head": weights.head,
        "encoders": weights.encoders,
        "rotary tables": weights.rotary,
    }
    return " + ".join(f"{name} {size / GIB:.3f}" for name, size in parts.items() if size)


def _extras(
    request: MemoryRequest, shape: ModelShape, dense: WeightFormat, layers: range, last: bool, log: Derivation
) -> float:
    total = 0.0
    if request.adapters is not None:
        total += adapter_bytes(shape, request.layout, layers, request.adapters, log)
    if request.speculation is not None and last:
        total += draft_bytes(shape, request.layout, dense, request.speculation, log)
    return total


def _pool(request: MemoryRequest, flags: Flags, stage: StageMemory, log: Derivation) -> float | None:
    """Bytes left for the cache; what the fraction multiplies differs between engines."""
    if request.pool_gib is not None:
        return log.gib("kv_pool", "given", request.pool_gib * GIB)
    if flags.memory_gib is None:
        return None
    total, share = flags.memory_gib * GIB, flags.fraction
    held = stage.weights + stage.extras
    if flags.facts.fraction_of == "free":
        pool = share * (total - stage.non_kv)
        return log.gib("kv_pool", f"{share:g} x ({flags.memory_gib:g} - non-KV {stage.non_kv / GIB:.3f})", pool)
    if flags.facts.fraction_of == "static":
        pool = share * (total - stage.non_torch) - held
        formula = f"{share:g} x ({flags.memory_gib:g} - {stage.non_torch / GIB:.3f}) - weights {held / GIB:.3f}"
        return log.gib("kv_pool", formula, pool)
    graphs = stage.graphs if flags.facts.graphs_in_pool else 0.0
    formula = f"{share:g} x {flags.memory_gib:g} - non-KV {stage.non_kv / GIB:.3f}"
    formula += f" - graphs {graphs / GIB:.3f}" if graphs else ""
    return log.gib("kv_pool", formula, share * total - stage.non_kv - graphs)
