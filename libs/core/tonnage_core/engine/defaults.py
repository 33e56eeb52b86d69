"""What an engine is set to when nobody says otherwise: vLLM's defaults for an API server, by GPU.

Source: vLLM 0.32 `EngineArgs.get_batch_defaults` and `CacheConfig`; facts of a public release, Apache-2.0.
"""

from tonnage_core.engine.errors import BadEngineConfigError
from tonnage_core.engine.types import EngineConfig
from tonnage_core.hardware import GpuSpec
from tonnage_core.memory import MemoryRequest, plan_memory
from tonnage_core.models import ModelShape
from tonnage_core.parallelism import Layout
from tonnage_core.units import GIB

VLLM_VERSION = "0.32.0"
BLOCK_SIZE = 16
GPU_MEMORY_UTILIZATION = 0.92
_HUGE_GIB, _LARGE_GIB = 160, 70


def batch_limits(gpu: GpuSpec) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of an API server on this GPU."""
    if gpu.memory_gib >= _HUGE_GIB:
        return 16384, 1024
    if gpu.memory_gib >= _LARGE_GIB and "a100" not in gpu.name.lower():
        return 8192, 1024
    return 2048, 256


def pool_blocks(
    shape: ModelShape,
    gpu: GpuSpec,
    *,
    block_size: int = BLOCK_SIZE,
    tp: int = 1,
    kv_dtype: str = "auto",
    utilization: float = GPU_MEMORY_UTILIZATION,
    max_num_batched_tokens: int | None = None,
    max_num_seqs: int | None = None,
) -> int:
    """KV blocks that `memory.plan_memory` leaves on each of `tp` GPUs, every attention layer kept at full length.

    Raises BadEngineConfigError when no block is left, and what `plan_memory` raises for flags that vLLM refuses.
    """
    request = MemoryRequest(
        shape=shape,
        gpu=gpu,
        engine="vllm",
        engine_version=VLLM_VERSION,
        layout=Layout(tp),
        kv_dtype=kv_dtype,
        block_size=block_size,
        gpu_memory_utilization=utilization,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
    )
    (stage,) = plan_memory(request).stages
    pool = stage.pool or 0.0
    blocks = int(pool // (block_size * shape.kv_bytes_per_token(kv_dtype, tp)))
    if blocks < 2:
        raise BadEngineConfigError(
            f"{shape.name} leaves no room for KV on {tp} x {gpu.name}: {stage.non_kv / GIB:.1f} GiB a GPU go first, "
            f"{utilization * gpu.memory_gib:.1f} GiB may be used; use more GPUs (--tp) or a smaller model"
        )
    return blocks


def engine_config_for(
    shape: ModelShape,
    gpu: GpuSpec,
    *,
    tp: int = 1,
    kv_dtype: str = "auto",
    utilization: float = GPU_MEMORY_UTILIZATION,
    block_size: int = BLOCK_SIZE,
    num_blocks: int | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
) -> EngineConfig:
    """A model on a GPU with vLLM's defaults for whatever is None.

    `max_model_len` defaults to the model's, or less where the blocks hold less than one such request.
    """
    tokens, seqs = batch_limits(gpu)
    batched = max(tokens, max_num_seqs or 0) if max_num_batched_tokens is None else max_num_batched_tokens
    if num_blocks is None:
        num_blocks = pool_blocks(
            shape,
            gpu,
            block_size=block_size,
            tp=tp,
            kv_dtype=kv_dtype,
            utilization=utilization,
            max_num_batched_tokens=batched,
            max_num_seqs=max_num_seqs,
        )
    longest = min(shape.longest or shape.max_position_embeddings, (num_blocks - 1) * block_size)
    return EngineConfig(
        num_blocks=num_blocks,
        max_model_len=longest if max_model_len is None else max_model_len,
        block_size=block_size,
        max_num_seqs=min(seqs, batched) if max_num_seqs is None else max_num_seqs,
        max_num_batched_tokens=batched,
    )
