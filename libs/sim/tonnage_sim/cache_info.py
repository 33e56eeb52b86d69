"""The labels of vllm:cache_config_info, as vLLM 0.32 prints its cache configuration."""

from tonnage_sim.engine.build import EnginePlan
from tonnage_sim.settings import SimSettings


def cache_info(settings: SimSettings, plan: EnginePlan) -> dict[str, str]:
    """Label values; what the simulator has no notion of shows the engine's default."""
    config = plan.config
    tokens = config.num_blocks * config.block_size
    return {
        "_block_size_resolved": "True",
        "block_size": str(config.block_size),
        "cache_dtype": settings.kv_dtype,
        "cache_hit_alignment_tokens": "None",
        "effective_attention_block_size": str(config.block_size),
        "enable_mamba_shared_prefix_checkpoint": "False",
        "enable_prefix_caching": str(config.enable_prefix_caching),
        "gpu_memory_utilization": str(settings.gpu_memory_utilization),
        "hash_block_size": "None",
        "is_attention_free": "False",
        "kv_cache_dtype_skip_layers": "[]",
        "kv_cache_layout": "None",
        "kv_cache_max_concurrency": str(tokens / config.max_model_len),
        "kv_cache_memory_bytes": str(plan.kv_bytes),
        "kv_cache_size_tokens": str(tokens),
        "kv_offloading_backend": "native",
        "kv_offloading_size": "None",
        "kv_sharing_fast_prefill": "False",
        "mamba_block_size": "None",
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_page_size_padded": "None",
        "mamba_ssm_cache_dtype": "float32",
        "num_cpu_blocks": "None",
        "num_gpu_blocks": str(config.num_blocks),
        "num_gpu_blocks_override": str(settings.num_blocks),
        "prefix_cache_retention_interval": "0",
        "prefix_caching_hash_algo": "sha256",
        "prefix_match_unit": "None",
        "replayssm_buffer_len": "16",
        "skip_page_size_padded": "None",
        "sliding_window": "None",
        "swa_bounded_replay": "True",
        "use_kda_recoverssm": "False",
        "use_replayssm": "False",
        "user_specified_block_size": "True",
    }
