"""From settings to an engine: the memory a GPU leaves for KV blocks, and the step times of the model on it."""

import logging
from dataclasses import dataclass, replace

from tonnage_core.engine.defaults import engine_config_for
from tonnage_core.engine.engine import Engine
from tonnage_core.engine.step_time import step_time_for
from tonnage_core.engine.types import EngineConfig
from tonnage_core.hardware import GpuSpec
from tonnage_core.models import ModelShape
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
    record_cache: bool = False
    """Keep what happens to the prefix cache, for its events."""

    def make(self) -> Engine:
        """A fresh engine."""
        engine = Engine(self.config, self.step_clock, model=self.model, seed=self.seed)
        if self.record_cache:
            engine.record_cache()
        return engine


def plan_engine(settings: SimSettings, shape: ModelShape, gpu: GpuSpec, model: str) -> EnginePlan:
    """The engine of `settings`; raises BadEngineConfigError for what cannot run, such as weights that leave no room."""
    usual = engine_config_for(
        shape,
        gpu,
        tp=settings.tp,
        kv_dtype=settings.kv_dtype,
        utilization=settings.gpu_memory_utilization,
        block_size=settings.block_size,
        num_blocks=settings.num_blocks,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
    )
    config = replace(
        usual,
        policy=settings.scheduling_policy,
        batching=settings.batching,
        preemption=settings.preemption,
        enable_prefix_caching=settings.enable_prefix_caching,
        adapter_slots=settings.max_loras,
        adapter_host_slots=settings.max_loras if settings.max_cpu_loras is None else settings.max_cpu_loras,
        step_jitter=settings.step_jitter,
    )
    if settings.max_model_len is None and config.max_model_len < shape.max_position_embeddings:
        logger.warning("context shortened to what the KV cache holds", extra={"max_model_len": config.max_model_len})
    step_clock = AdjustableStepClock(step_time_for(shape, gpu, tp=settings.tp, kv_dtype=settings.kv_dtype))
    kv_bytes = config.num_blocks * config.block_size * shape.kv_bytes_per_token(settings.kv_dtype, settings.tp)
    events = settings.kv_events_config
    record = events is not None and events.on and config.enable_prefix_caching
    return EnginePlan(config, step_clock, model, settings.seed, kv_bytes, record)
