"""How many requests an engine runs at once: what its KV pool and its batch limit allow."""

from dataclasses import dataclass
from math import inf

from tonnage_core.kv_cache.capacity import SequenceRules
from tonnage_core.memory.plan import MemoryPlan, plan_memory
from tonnage_core.memory.request import MemoryRequest
from tonnage_core.prediction.coefficients import engine_key
from tonnage_core.prediction.request import PredictRequest


@dataclass(frozen=True, slots=True)
class Slots:
    """`running` requests at once over the whole replica and what limits them (client, max_num_seqs, kv_cache).

    `fits`: whether the pool holds one such request at all.
    """

    running: float
    binding: str
    fits: bool
    pool_tokens: float
    chunk: int
    max_num_seqs: int
    notes: tuple[str, ...]


def slots_of(request: PredictRequest) -> Slots:
    """Slots of a replica for requests of these lengths. Raises what `plan_memory` raises for refused flags."""
    return _limited(request, plan_memory(_memory_request(request)))


def _memory_request(request: PredictRequest) -> MemoryRequest:
    return MemoryRequest(
        shape=request.shape,
        gpu=request.gpu,
        gpu_memory_gib=request.gpu_memory_gib,
        engine=engine_key(request.engine),
        engine_version=request.engine_version if request.engine != "nim" else "",
        layout=request.layout,
        dtype="auto" if request.shape.quantization.rules else request.precision,
        kv_dtype=request.kv_dtype,
        max_model_len=int(request.isl + request.osl) + 1,
        max_num_seqs=request.max_num_seqs,
        max_num_batched_tokens=request.max_num_batched_tokens,
        gpu_memory_utilization=request.gpu_memory_utilization,
        enforce_eager=request.enforce_eager,
        pool_gib=request.pool_gib,
        allow_longer=True,
    )


def _limited(request: PredictRequest, plan: MemoryPlan) -> Slots:
    ranks, seqs = request.layout.dp, plan.flags.max_num_seqs
    capacity = plan.capacity
    held = inf
    if capacity is not None and (capacity.blocks or capacity.concurrency):
        held = _sequences(request, plan) * ranks
    elif capacity is not None:
        held = 0.0
    limits = {"client": float(request.concurrency), "max_num_seqs": float(seqs * ranks), "kv_cache": held}
    binding = min(limits, key=lambda name: limits[name])
    tokens = inf if capacity is None else float(capacity.tokens)
    fits = held >= 1
    notes = plan.notes + _too_long(request)
    return Slots(max(1.0, limits[binding]), binding, fits, tokens, plan.flags.batched_tokens, seqs, notes)


def _too_long(request: PredictRequest) -> tuple[str, ...]:
    """A time is computed for any length, but engines refuse a request beyond the positions a model was made for."""
    asked, most = request.isl + request.osl, request.shape.longest or request.shape.max_position_embeddings
    if not 0 < most < asked:
        return ()
    return (f"{asked:g} tokens a request exceed the model's {most} positions: engines refuse it as configured",)


def _sequences(request: PredictRequest, plan: MemoryPlan) -> float:
    """Sequences of one rank's pool at their mean length: staggered requests hold half of their output each.

    TensorRT-LLM admits a request only when its whole output fits.
    """
    capacity = plan.capacity
    assert capacity is not None
    whole = plan.facts.engine == "trtllm"
    length = int(request.isl + request.osl * (1.0 if whole else 0.5))
    if plan.facts.engine != "vllm" or not plan.grouping.groups:
        return capacity.concurrency * plan.flags.max_model_len / max(1, length)
    settled = SequenceRules(plan.rules.max_model_len, 1, plan.rules.state_pages, plan.rules.context_parallel)
    return capacity.blocks / max(1, settled.blocks(plan.grouping, length))
