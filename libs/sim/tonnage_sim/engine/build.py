"""From settings to an engine: the memory a GPU leaves for KV blocks, and the step times of the model on it."""

import logging
from dataclasses import dataclass

from tonnage_core.engine.engine import Engine
from tonnage_core.engine.step_time import step_time_for
from tonnage_core.engine.types import EngineConfig
from tonnage_core.errors import NotFittingError
from tonnage_core.hardware import GpuSpec
from tonnage_core.models import ModelShape
from tonnage_core.units import GIB
from tonnage_sim.engine.step_clock import AdjustableStepClock
from tonnage_sim.settings import SimSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """An engine that can be made, again when its cache is reset."""

    config: EngineConfig
    step_clock: AdjustableStepClock
    model: str
    seed: int
    kv_bytes: int
    """Bytes of all KV blocks on one GPU."""

    def make(self) -> Engine:
        """A fresh engine."""
        return Engine(self.config, self.step_clock, model=self.model, seed=self.seed)


def plan_engine(settings: SimSettings, shape: ModelShape, gpu: GpuSpec, model: str) -> EnginePlan:
    """The engine of `settings`; raises NotFittingError when the weights leave no room for KV blocks."""
    block_bytes = settings.block_size * shape.kv_bytes_per_token(settings.kv_dtype, settings.tp)
    blocks = settings.num_blocks or _blocks_that_fit(settings, shape, gpu, block_bytes)
    config = EngineConfig(
        num_blocks=blocks,
        max_model_len=_context(settings, shape, blocks),
        block_size=settings.block_size,
        max_num_seqs=min(settings.max_num_seqs, settings.max_num_batched_tokens),
        max_num_batched_tokens=settings.max_num_batched_tokens,
        policy=settings.scheduling_policy,
        batching=settings.batching,
        preemption=settings.preemption,
        enable_prefix_caching=settings.enable_prefix_caching,
        adapter_slots=settings.max_loras,
        adapter_host_slots=settings.max_loras if settings.max_cpu_loras is None else settings.max_cpu_loras,
        step_jitter=settings.step_jitter,
    )
    step_clock = AdjustableStepClock(step_time_for(shape, gpu, tp=settings.tp, kv_dtype=settings.kv_dtype))
    return EnginePlan(config, step_clock, model, settings.seed, blocks * block_bytes)


def _blocks_that_fit(settings: SimSettings, shape: ModelShape, gpu: GpuSpec, block_bytes: int) -> int:
    taken = gpu.memory_gib * settings.gpu_memory_utilization * GIB
    weights = shape.weight_bytes(settings.tp)
    left = taken - weights - settings.non_kv_gib * GIB
    blocks = int(left // block_bytes)
    if blocks < 2:
        raise NotFittingError(
            f"{shape.name} does not fit {gpu.name}: weights take {weights / GIB:.1f} of {taken / GIB:.1f} GiB a GPU, "
            f"{settings.non_kv_gib:g} GiB go elsewhere, which leaves no KV block; take a larger GPU, raise tp, or "
            "set num_blocks"
        )
    return blocks


def _context(settings: SimSettings, shape: ModelShape, blocks: int) -> int:
    if settings.max_model_len is not None:
        return settings.max_model_len
    held = (blocks - 1) * settings.block_size
    if held < shape.max_position_embeddings:
        logger.warning("context shortened to what the KV cache holds", extra={"max_model_len": held})
    return min(shape.max_position_embeddings, held)
