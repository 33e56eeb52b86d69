"""From a model, a card and flags to what each pipeline stage holds and what its KV pool can serve."""

from dataclasses import dataclass, replace

from tonnage_core.kv_cache.capacity import Capacity, SequenceRules, longest_sequence, pool_capacity, stage_bounds
from tonnage_core.kv_cache.groups import Grouping, group_layers
from tonnage_core.kv_cache.specs import CachedLayer, cache_type, cached_layers, heads_note
from tonnage_core.kv_cache.static_pools import stage_costs, static_capacity
from tonnage_core.kv_cache.versions import EngineFacts
from tonnage_core.memory.flags import UNCHUNKED_LIMIT, Flags, derived_max_len, resolve
from tonnage_core.memory.overheads import draft_mixers
from tonnage_core.memory.request import MemoryRequest
from tonnage_core.memory.stages import StageMemory, all_stages
from tonnage_core.memory.steps import Derivation, Step
from tonnage_core.models.layers import CompressedAttention, Experts, LatentAttention, Layer
from tonnage_core.models.shape import ModelShape
from tonnage_core.quantization.formats import PRECISIONS
from tonnage_core.quantization.plan import QuantizationPlan, Rule
from tonnage_core.units import GIB


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


DTYPE_NAMES = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float32": "float32",
}


def effective_shape(request: MemoryRequest, facts: EngineFacts) -> tuple[ModelShape, tuple[str, ...]]:
    """The shape with what the request changes: encoders off, redundant experts, a format for a plain checkpoint."""

    shape = request.shape
    notes: tuple[str, ...] = ()
    wanted = PRECISIONS.get(request.dtype)
    stated = DTYPE_NAMES.get(request.dtype)
    if stated is not None and stated != shape.dtype:
        shape = replace(shape, dtype=stated)
    if wanted is not None and request.dtype not in ("bf16", "fp16", "fp32") and not shape.quantization.rules:
        plan = QuantizationPlan(request.dtype, (Rule(wanted),), kv_cache=shape.quantization.kv_cache)
        shape = replace(shape, quantization=plan)
        notes = (f"the config has no quantisation block: every projection counted as {request.dtype}",)
    if not request.multimodal and shape.encoders:
        shape = replace(shape, encoders=())
    if facts.engine == "sglang":
        shape = replace(shape, stack=tuple(_compressed_cache(layer) for layer in shape.stack))
    if request.redundant_experts:
        shape = replace(shape, stack=tuple(_with_slots(layer, request.redundant_experts) for layer in shape.stack))
    return shape, notes


def _compressed_cache(layer: Layer) -> Layer:
    """SGLang caches the compressed vector of every latent attention."""
    mixer = layer.mixer
    if not isinstance(mixer, LatentAttention) or not mixer.cached_by_head:
        return layer
    return replace(layer, mixer=replace(mixer, cached_by_head=False))


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
    shape, more = effective_shape(request, flags.facts)
    log = Derivation()
    grouping = group_layers(_cached(request, shape, flags), flags.facts)
    rules = SequenceRules(flags.max_model_len, flags.batched_tokens, flags.state_pages, request.decode_context_parallel)
    bounds = stage_bounds(shape.layers, request.layout.pp)
    stages, traces = all_stages(request, shape, flags, bounds)
    log.steps += traces[0].steps
    capacity = longest = None
    if all(stage.pool is not None for stage in stages):
        pools = [stage.pool or 0.0 for stage in stages]
        limit = derived_max_len(shape)
        if flags.facts.engine == "vllm":
            capacity = pool_capacity(grouping, pools, bounds, rules, flags.facts)
            longest = _longest(request, shape, flags, grouping, rules, capacity, limit)
            log.steps += _binding_steps(capacity.stage, traces)
            _explain(grouping, rules, capacity, pools, flags.facts, log)
        else:
            capacity = _static(request, shape, flags, bounds, pools, rules, log)
            longest = min(limit, capacity.tokens) if capacity.concurrency > 0 else 0
    notes = (*flags.notes, *more, *_head_notes(shape, request.layout.tp), *_approximations(shape, flags.facts))
    return MemoryPlan(request, shape, flags, stages, grouping, rules, capacity, longest, log, notes)


def _longest(
    request: MemoryRequest,
    shape: ModelShape,
    flags: Flags,
    grouping: Grouping,
    rules: SequenceRules,
    capacity: Capacity,
    limit: int,
) -> int:
    """The longest max_model_len that fits; where what is left depends on it, every length has a pool of its own."""
    guess = longest_sequence(grouping, capacity.blocks, rules, limit)
    unchunked = not flags.facts.chunked_prefill and request.max_num_batched_tokens is None
    # Latent attention keeps a workspace that grows with the length.
    latent = any(isinstance(layer.mixer, LatentAttention) for layer in shape.distinct_layers)
    if request.pool_gib is not None or not (unchunked or latent):
        return guess
    if _blocks_at(request, shape, grouping, rules, max(1, guess)) == capacity.blocks:
        return guess

    def search(low: int, high: int) -> int:
        while low < high:
            middle = (low + high + 1) // 2
            fits = rules.blocks(grouping, middle) <= _blocks_at(request, shape, grouping, rules, middle)
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    if not unchunked or limit <= UNCHUNKED_LIMIT:
        return search(0, limit)
    # Longer contexts switch chunked prefill on, and so may fit where shorter ones do not: answer on the asked side.
    short = search(0, UNCHUNKED_LIMIT) if flags.max_model_len <= UNCHUNKED_LIMIT else UNCHUNKED_LIMIT
    if short < UNCHUNKED_LIMIT:
        return short
    beyond = search(UNCHUNKED_LIMIT, limit)
    return beyond if beyond > UNCHUNKED_LIMIT else search(0, UNCHUNKED_LIMIT)


def _blocks_at(request: MemoryRequest, shape: ModelShape, grouping: Grouping, rules: SequenceRules, length: int) -> int:
    """Blocks of the tightest stage when max_model_len is `length`."""
    asked = replace(request, max_model_len=length, allow_longer=True)
    bounds, flags = stage_bounds(shape.layers, request.layout.pp), resolve(asked)
    stages, _ = all_stages(asked, shape, flags, bounds)
    return pool_capacity(grouping, [stage.pool or 0.0 for stage in stages], bounds, rules, flags.facts).blocks


def _binding_steps(stage: int, traces: tuple[Derivation, ...]) -> list[Step]:
    """The steps of the stage that binds, where it is not the first, which rank 0 of an engine logs."""
    return [replace(step, name=f"stage_{stage}_{step.name}") for step in traces[stage].steps] if stage else []


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
        formula = f"{capacity.blocks:,} // {len(grouping.groups)} groups x {rules.page_tokens(grouping)} tokens"
    log.count("tokens", formula, capacity.tokens, "tokens")
