"""The memory document: `memory_report` is the one function the command line and the planner service call."""

from typing import Any

from tonnage_core.kv_cache.capacity import stage_bounds
from tonnage_core.kv_cache.specs import cache_type
from tonnage_core.memory.plan import MemoryPlan, plan_memory
from tonnage_core.memory.request import MemoryRequest
from tonnage_core.memory.stages import StageMemory
from tonnage_core.models.caching import bytes_per_token
from tonnage_core.units import GIB

SCHEMA = "tonnage.memory/1"


def memory_report(request: MemoryRequest, version: str = "") -> dict[str, Any]:
    """The `tonnage.memory/1` document of one request; sizes in GiB are per GPU.

    Fields that need a card are null when neither a card nor a pool is given. Raises the errors of `plan_memory`.
    """
    return report_of(plan_memory(request), version)


def report_of(plan: MemoryPlan, version: str = "") -> dict[str, Any]:
    """The document of a plan."""
    first = plan.stages[0]
    verdict = verdict_of(plan)
    kind = cache_type(plan.shape, plan.facts, plan.request.kv_dtype)
    capacity = plan.capacity
    return {
        "schema": SCHEMA,
        "version": version,
        "model": plan.shape.name,
        "gpu": plan.request.gpu.name if plan.request.gpu else None,
        "engine": f"{plan.facts.engine}:{plan.facts.version}",
        "weight_gib": _gib(first.weights + first.extras),
        "activation_peak_gib": _gib(first.activation),
        "non_torch_gib": _gib(first.non_torch),
        "cuda_graph_gib": _gib(first.graphs),
        "non_kv_total_gib": _gib(first.non_kv),
        "kv_cache_gib": None if first.pool is None else _gib(first.pool),
        "kv_bytes_per_token": bytes_per_token(plan.shape, kind, plan.request.layout.tp, plan.request.layout.pp),
        "kv_cache_blocks": capacity.blocks if capacity else None,
        "kv_cache_tokens": capacity.tokens if capacity else None,
        "max_concurrency_x": round(capacity.concurrency, 4) if capacity else None,
        "fits": verdict[0],
        "binding": verdict[1],
        "reason": verdict[2],
        "max_fitting_model_len": plan.longest,
        "max_model_len": plan.flags.max_model_len,
        "block_size": plan.rules.page_tokens(plan.grouping) if plan.grouping.groups else None,
        "blocks_per_sequence": capacity.sequence_blocks if capacity else None,
        "fixed_gib_per_request": _gib(fixed_bytes(plan)),
        "gpus": plan.request.layout.gpus,
        "memory_gib": plan.flags.memory_gib,
        "gpu_memory_utilization": plan.flags.fraction,
        "stages": [_stage(stage) for stage in plan.stages],
        "notes": list(plan.notes),
        "steps": [step.document() for step in plan.derivation.steps],
    }


def _gib(size_bytes: float) -> float:
    return round(size_bytes / GIB, 4)


def _stage(stage: StageMemory) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "layers": stage.layers,
        "weight_gib": _gib(stage.weights + stage.extras),
        "activation_peak_gib": _gib(stage.activation),
        "non_torch_gib": _gib(stage.non_torch),
        "cuda_graph_gib": _gib(stage.graphs),
        "kv_cache_gib": None if stage.pool is None else _gib(stage.pool),
    }


def fixed_bytes(plan: MemoryPlan) -> float:
    """What a request of one token holds already, whatever its length: whole pages, states, window pages."""
    if not plan.grouping.groups:
        return 0.0
    bounds = stage_bounds(plan.shape.layers, plan.request.layout.pp)
    largest = max(plan.grouping.bytes_per_block(first, stop) for first, stop in bounds)
    return plan.rules.blocks(plan.grouping, 1) * largest


def verdict_of(plan: MemoryPlan) -> tuple[bool | None, str, str]:
    """(fits, binding constraint, one sentence). None: neither a card nor a pool is known."""
    if plan.capacity is None:
        return None, "gpu", "no card and no pool given: nothing to fit into; give --gpu or --pool-gib"
    tight = min(plan.stages, key=lambda stage: stage.pool or 0.0)
    pool = tight.pool or 0.0
    if pool <= 0:
        return _without_pool(plan, tight, pool)
    capacity = plan.capacity
    if capacity.concurrency < 1:
        return False, "kv_cache", _too_long(plan)
    if capacity.concurrency >= plan.flags.max_num_seqs:
        return True, "max_num_seqs", f"the pool holds more than max_num_seqs {plan.flags.max_num_seqs} sequences"
    return (
        True,
        "kv_cache",
        f"the pool holds {capacity.concurrency:.2f} sequences of {plan.flags.max_model_len:,} tokens",
    )


def _without_pool(plan: MemoryPlan, tight: StageMemory, pool: float) -> tuple[bool, str, str]:
    memory = plan.flags.memory_gib or 0.0
    budget = plan.flags.fraction * memory
    short = f"{-pool / GIB:.2f} GiB short" + (f" on stage {tight.stage}" if len(plan.stages) > 1 else "")
    held = (tight.weights + tight.extras) / GIB
    if held >= budget:
        limit = f"{plan.flags.fraction:g} x {memory:g} GiB"
        return False, "weights", f"weights of {held:.2f} GiB exceed {limit}: {short}; use more GPUs"
    return (
        False,
        "activation",
        f"weights, activations and overhead leave no KV pool: {short}; lower max_num_seqs or max_num_batched_tokens,"
        " raise gpu_memory_utilization, or use more GPUs",
    )


def _too_long(plan: MemoryPlan) -> str:
    longest = plan.longest or 0
    advice = f"lower max_model_len to {longest:,}" if longest else "use more GPUs"
    return f"one sequence of {plan.flags.max_model_len:,} tokens needs more than the pool holds; {advice}"
