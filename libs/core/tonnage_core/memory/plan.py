"""From a model, a card and flags to what each pipeline stage holds and what its KV pool can serve."""

from dataclasses import dataclass, replace

from tonnage_core.kv_cache.capacity import Capacity, SequenceRules, longest_sequence, pool_capacity, stage_bounds
from tonnage_core.kv_cache.groups import Grouping, group_layers
from tonnage_core.kv_cache.specs import CachedLayer, cache_type, cached_layers, heads_note
from tonnage_core.kv_cache.static_pools import stage_costs, static_capacity
from tonnage_core.kv_cache.versions import EngineFacts
from tonnage_core.memory.activation import activation_peak
from tonnage_core.memory.flags import Flags, derived_max_len, resolve
from tonnage_core.memory.overheads import (
    adapter_bytes,
    draft_bytes,
    draft_mixers,
    graph_bytes,
    kernel_padding,
    non_torch_bytes,
)
from tonnage_core.memory.request import MemoryRequest
from tonnage_core.memory.steps import Derivation
from tonnage_core.models.layers import CompressedAttention, Experts, Layer
from tonnage_core.models.shape import ModelShape
from tonnage_core.models.weights import StageWeights, stage_weights
from tonnage_core.quantization.formats import PRECISIONS, WeightFormat
from tonnage_core.quantization.plan import QuantizationPlan, Rule
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


@dataclass(frozen=True)
class MemoryPlan:
    """The whole answer in bytes; `memory_report` turns it into the document."""

    request: MemoryRequest
    shape: ModelShape
    flags: Flags
    stages: tuple[StageMemory, ...]
    grouping: Grouping
    rules: SequenceRules
    capacity: Capacity | None
    longest: int | None
    derivation: Derivation
    notes: tuple[str, ...]

    @property
    def facts(self) -> EngineFacts:
        """Facts of the engine release."""
        return self.flags.facts


def effective_shape(request: MemoryRequest) -> tuple[ModelShape, tuple[str, ...]]:
    """The shape with what the request changes: encoders off, redundant experts, a format for a plain checkpoint."""

    shape = request.shape
    notes: tuple[str, ...] = ()
    wanted = PRECISIONS.get(request.dtype)
    if wanted is not None and request.dtype not in ("bf16", "fp16", "fp32") and not shape.quantization.rules:
        plan = QuantizationPlan(request.dtype, (Rule(wanted),), kv_cache=shape.quantization.kv_cache)
        shape = replace(shape, quantization=plan)
        notes = (f"the config has no quantisation block: every projection counted as {request.dtype}",)
    if not request.multimodal and shape.encoders:
        shape = replace(shape, encoders=())
    if request.redundant_experts:
        shape = replace(shape, stack=tuple(_with_slots(layer, request.redundant_experts) for layer in shape.stack))
    return shape, notes


def _with_slots(layer: Layer, redundant: int) -> Layer:
    """Experts are sized by slots: copies for load balance take memory like experts."""
    network = layer.network
    if not isinstance(network, Experts):
        return layer
    return replace(layer, network=replace(network, count=network.count + redundant))


def plan_memory(request: MemoryRequest) -> MemoryPlan:
    """Every stage's memory, the pool and its capacity.

    Raises `RefusedError` when the engine refuses the flags, `RequestError` and `CacheTypeError` for impossible ones.
    """
    flags = resolve(request)
    shape, more = effective_shape(request)
    log = Derivation()
    grouping = group_layers(_cached(request, shape, flags), flags.facts)
    rules = SequenceRules(flags.max_model_len, flags.batched_tokens, flags.state_pages, request.decode_context_parallel)
    bounds = stage_bounds(shape.layers, request.layout.pp)
    stages = _stages(request, shape, flags, bounds, log)
    capacity = longest = None
    if all(stage.pool is not None for stage in stages):
        pools = [stage.pool or 0.0 for stage in stages]
        limit = derived_max_len(shape)
        if flags.facts.engine == "vllm":
            capacity = pool_capacity(grouping, pools, bounds, rules, flags.facts)
            longest = longest_sequence(grouping, capacity.blocks, rules, limit)
            _explain(grouping, rules, capacity, pools, flags.facts, log)
        else:
            capacity = _static(request, shape, flags, bounds, pools, rules, log)
            longest = min(limit, capacity.tokens) if capacity.concurrency > 0 else 0
    notes = (*flags.notes, *more, *_head_notes(shape, request.layout.tp), *_approximations(shape, flags.facts))
    return MemoryPlan(request, shape, flags, stages, grouping, rules, capacity, longest, log, notes)


def _static(
    request: MemoryRequest,
    shape: ModelShape,
    flags: Flags,
    bounds: list[tuple[int, int]],
    pools: list[float],
    rules: SequenceRules,
    log: Derivation,
) -> Capacity:
    """Capacity of an engine that keeps windows and states in pools of their own."""
    facts, drafted = flags.facts, request.speculation.tokens if request.speculation else 0
    kind = cache_type(shape, facts, request.kv_dtype)
    costs = [stage_costs(shape, facts, kind, request.layout.tp, one, drafted) for one in bounds]
    found = static_capacity(shape, facts, costs, pools, rules, flags.max_num_seqs, request.block_size)
    cost = costs[found.stage]
    parts = f"{cost.token:,.0f} B a token + {cost.window:,.0f} B a window token + {cost.state:,} B of states a sequence"
    log.count("tokens", f"{pools[found.stage] / GIB:.4f} GiB over {parts}", found.tokens, "tokens")
    formula = f"{found.tokens:,} / {rules.max_model_len:,}, at most one state a sequence"
    log.count("concurrency", formula, round(found.concurrency, 4), "sequences")
    return found


def _cached(request: MemoryRequest, shape: ModelShape, flags: Flags) -> tuple[CachedLayer, ...]:
    return cached_layers(
        shape,
        flags.facts,
        kv_dtype=request.kv_dtype,
        tp=request.layout.tp,
        block=request.block_size,
        speculative=request.speculation.tokens if request.speculation else 0,
        hybrid=request.hybrid_groups,
        extra=draft_mixers(shape, request.speculation),
    )


def _head_notes(shape: ModelShape, tp: int) -> tuple[str, ...]:
    note = heads_note(shape.kv_heads, tp) if shape.attention_layers else ""
    return (note,) if note else ()


def _approximations(shape: ModelShape, facts: EngineFacts) -> tuple[str, ...]:
    """What is counted in a simpler way than the engine does it."""
    found = []
    if any(isinstance(layer.mixer, CompressedAttention) for layer in shape.distinct_layers):
        found.append("compressed attention: pages by published entry sizes, compressor states left out")
    windows = any(layer.window or layer.chunk for layer in shape.attention_layers)
    if windows and facts.engine == "trtllm":
        found.append("TensorRT-LLM: windowed layers counted at full length")
    return tuple(found)


def _stages(
    request: MemoryRequest, shape: ModelShape, flags: Flags, bounds: list[tuple[int, int]], log: Derivation
) -> tuple[StageMemory, ...]:
    layout, facts = request.layout, flags.facts
    found = []
    for index, weights in enumerate(stage_weights(shape, layout, flags.dense)):
        # One stage is spelled out: the first, which is what the engine's rank 0 logs.
        trace = log if index == 0 else Derivation()
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
    return tuple(found)


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


def _explain(
    grouping: Grouping,
    rules: SequenceRules,
    capacity: Capacity,
    pools: list[float],
    facts: EngineFacts,
    log: Derivation,
) -> None:
    """The steps from the pool to blocks, tokens and concurrency."""
    if not grouping.groups:
        return
    for index, group in enumerate(grouping.groups):
        spec = group.spec
        pages = spec.pages(rules.max_model_len, rules.in_flight, rules.state_pages, rules.context_parallel)
        what = f"{len(group.layers)} {spec.kind} layers, {spec.block} tokens and {spec.page:,} B a page"
        log.count(f"group_{index}", what, pages, "pages a sequence")
    pool, block = pools[capacity.stage] / GIB, capacity.block_bytes
    log.count("blocks", f"{pool:.4f} GiB // {block:,} B a block (stage {capacity.stage})", capacity.blocks, "blocks")
    needed = capacity.sequence_blocks
    log.count("sequence_blocks", f"pages of {rules.max_model_len:,} tokens over all groups", needed, "blocks")
    concurrency = round(capacity.concurrency, 4)
    log.count("concurrency", f"{capacity.blocks:,} / {needed:,}", concurrency, "sequences")
    if facts.tokens_from_concurrency:
        formula = f"concurrency x {rules.max_model_len:,}"
    else:
        formula = f"{capacity.blocks:,} // {len(grouping.groups)} groups x {grouping.smallest_block} tokens"
    log.count("tokens", formula, capacity.tokens, "tokens")
