"""Fill a request's open flags with the engine's defaults, and refuse what the engine refuses before loading."""

from dataclasses import dataclass

from tonnage_core.kv_cache.versions import EngineFacts, engine_facts
from tonnage_core.memory.request import MemoryRequest, RefusedError, RequestError
from tonnage_core.models.layers import Attention, CompressedAttention, Experts, LatentAttention, RecurrentState
from tonnage_core.models.shape import ModelShape
from tonnage_core.quantization.formats import PRECISIONS, WeightFormat

LARGE_CARD_GIB = 70
UNCHUNKED_LIMIT = 32768
"""Before chunked prefill was the default, longer contexts switched it on."""
DEFAULT_MEMORY_GIB = 80.0


@dataclass(frozen=True)
class Flags:
    """Every flag with its value in use."""

    facts: EngineFacts
    memory_gib: float | None
    max_model_len: int
    max_num_seqs: int
    batched_tokens: int
    fraction: float
    state_pages: int
    dense: WeightFormat
    notes: tuple[str, ...]


def resolve(request: MemoryRequest) -> Flags:
    """Flags in use; `RefusedError` when the engine would not start with them."""
    facts, notes = engine_facts(request.engine, request.engine_version)
    shape = request.shape
    check_layout(request)
    memory = request.gpu_memory_gib or (request.gpu.memory_gib if request.gpu else None)
    length = max_model_len(request)
    large = (memory or DEFAULT_MEMORY_GIB) >= LARGE_CARD_GIB and not (facts.engine == "vllm" and _is_a100(request))
    seqs = request.max_num_seqs or (facts.large_card_seqs if large else facts.default_seqs)
    batched = request.max_num_batched_tokens or _batched_tokens(facts, length, large)
    dense, more = dense_format(shape, request.dtype)
    return Flags(
        facts=facts,
        memory_gib=memory,
        max_model_len=length,
        max_num_seqs=min(seqs, batched) if facts.engine == "vllm" else seqs,
        batched_tokens=batched,
        fraction=_fraction(request, facts, memory, batched),
        state_pages=_state_pages(request, facts),
        dense=dense,
        notes=(*shape.notes, *notes, *more),
    )


def _is_a100(request: MemoryRequest) -> bool:
    """vLLM keeps the small defaults on A100 cards of any size."""
    return request.gpu is not None and "a100" in request.gpu.name.lower()


def _batched_tokens(facts: EngineFacts, length: int, large: bool) -> int:
    if not facts.chunked_prefill and length <= UNCHUNKED_LIMIT:
        return max(length, facts.default_batched_tokens)
    return facts.large_card_batched_tokens if large else facts.default_batched_tokens


def _fraction(request: MemoryRequest, facts: EngineFacts, memory: float | None, batched: int) -> float:
    if request.gpu_memory_utilization is not None:
        return request.gpu_memory_utilization
    if facts.engine != "sglang" or memory is None:
        return facts.default_fraction
    # SGLang's server_args reserve MiB for metadata, prefill activations, graphs and large layouts.
    layout = request.layout
    reserve = 512 + max(batched, 2048) * 1.5 + layout.tp * layout.dp * layout.pp / 8 * 1024
    graphs = (512 if memory > 160 or layout.tp * layout.dp > 3 else 256) if memory > 60 else 32
    reserve += 2 * graphs + (3 * graphs * layout.dp if layout.dp > 1 else 0)
    reserve = max(reserve, 10 * 1024) if memory > 60 else reserve
    return max(0.1, round((memory * 1024 - reserve) / (memory * 1024), 3))


def _state_pages(request: MemoryRequest, facts: EngineFacts) -> int:
    """State pages a request and recurrent group, one more for each speculative token."""
    base = facts.recurrent_pages if request.prefix_caching is None else 2 if request.prefix_caching else 1
    return base + (request.speculation.tokens if request.speculation else 0)


def dense_format(shape: ModelShape, dtype: str) -> tuple[WeightFormat, tuple[str, ...]]:
    """The format of weights the checkpoint does not quantise, and notes."""
    name = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}.get(dtype, dtype)
    if name in ("", "auto"):
        return shape.dense_format, ()
    if name in ("bf16", "fp16", "fp32"):
        return PRECISIONS[name], ()
    if name not in PRECISIONS:
        raise RequestError(f"unknown dtype {dtype[:40]!r}; use auto, {', '.join(PRECISIONS)}")
    return shape.dense_format, ()


def derived_max_len(shape: ModelShape) -> int:
    """The longest sequence the checkpoint is made for, scaling included."""
    return shape.longest or shape.max_position_embeddings


def max_model_len(request: MemoryRequest) -> int:
    """The flag, or the checkpoint's own limit; above it the engine refuses."""
    limit = derived_max_len(request.shape)
    if request.max_model_len is None:
        return limit
    if request.max_model_len > limit and not request.allow_longer:
        raise RefusedError(
            f"max_model_len {request.max_model_len:,} is more than the {limit:,} positions of {request.shape.name};"
            f" use at most {limit:,}"
        )
    return request.max_model_len


def check_layout(request: MemoryRequest) -> None:
    """Parallel sizes that divide heads, vocabulary and experts, a draft model's too."""
    shape, layout = request.shape, request.layout
    if layout.pp > shape.layers:
        raise RefusedError(f"pp {layout.pp} is more than the model's {shape.layers} layers; use at most {shape.layers}")
    if layout.tp == 1 and layout.ep == 1:
        return
    _check_split(shape, layout.tp)
    if request.speculation is not None and request.speculation.draft is not None:
        _check_split(request.speculation.draft, layout.tp)
    experts = max(
        (layer.network.count for layer in shape.distinct_layers if isinstance(layer.network, Experts)), default=0
    )
    if layout.ep > 1 and not experts:
        raise RefusedError(f"ep {layout.ep}: {shape.name} has no experts; use ep 1")
    if experts and layout.ep > experts + request.redundant_experts:
        raise RefusedError(f"ep {layout.ep} is more than {experts} experts; use at most {experts}")


def _check_split(shape: ModelShape, tp: int) -> None:
    for heads, what in sorted(_divisible(shape)):
        if heads % tp and not (what == "key/value heads" and tp % heads == 0):
            raise RefusedError(f"tp {tp} does not divide the {heads} {what} of {shape.name}; use {_choices(shape)}")
    if _padded_vocabulary(shape) % tp:
        raise RefusedError(f"tp {tp} does not divide the vocabulary of {shape.vocab:,}; use {_choices(shape)}")


def _padded_vocabulary(shape: ModelShape) -> int:
    return -(-shape.vocab // 64) * 64


def _divisible(shape: ModelShape) -> set[tuple[int, str]]:
    found: set[tuple[int, str]] = set()
    for layer in shape.distinct_layers:
        mixer = layer.mixer
        if isinstance(mixer, Attention):
            found |= {(mixer.heads, "attention heads"), (mixer.kv_heads, "key/value heads")}
        elif isinstance(mixer, LatentAttention | CompressedAttention):
            found.add((mixer.heads, "attention heads"))
        elif isinstance(mixer, RecurrentState):
            found.add((mixer.heads, "state heads"))
    return found


def _choices(shape: ModelShape) -> str:
    """Tensor-parallel sizes that divide everything, for the error message."""
    fine = []
    for tp in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 32):
        heads = all(h % tp == 0 or (what == "key/value heads" and tp % h == 0) for h, what in _divisible(shape))
        if heads and _padded_vocabulary(shape) % tp == 0:
            fine.append(str(tp))
    return "tp " + ", ".join(fine)
