"""Engine configurations and requests that cannot work, refused with the field and the fix."""

from tonnage_core.engine.block_keys import checks_out
from tonnage_core.engine.errors import BadEngineConfigError, BadRequestError, RequestTooLongError
from tonnage_core.engine.types import EngineConfig, EngineRequest

_CHOICES = {
    "policy": ("fcfs", "priority"),
    "batching": ("continuous", "static"),
    "preemption": ("recompute", "swap"),
}
_AT_LEAST = {
    "block_size": 1,
    "num_blocks": 2,
    "max_model_len": 2,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "long_prefill_token_threshold": 0,
    "adapter_slots": 0,
    "adapter_host_slots": 0,
    "adapter_load_s": 0,
    "adapter_fetch_s": 0,
}

_MOST_BLOCKS = 1 << 26
"""Far beyond any GPU's; the pool keeps a few words of memory for each block."""


def check_config(config: EngineConfig) -> None:
    """Raise BadEngineConfigError for the first thing that cannot work."""
    for name, least in _AT_LEAST.items():
        value = getattr(config, name)
        if not value >= least:
            raise BadEngineConfigError(f"{name} is {value}; it must be at least {least}")
    if config.num_blocks > _MOST_BLOCKS:
        raise BadEngineConfigError(f"num_blocks is {config.num_blocks}; it must be at most {_MOST_BLOCKS:,}")
    for name, allowed in _CHOICES.items():
        value = getattr(config, name)
        if value not in allowed:
            raise BadEngineConfigError(f"{name} is {value!r}; use one of {', '.join(allowed)}")
    if config.swap_blocks is not None and config.swap_blocks < 0:
        raise BadEngineConfigError(f"swap_blocks is {config.swap_blocks}; it must be at least 0, or None for no limit")
    if not 0 <= config.step_jitter < 1:
        raise BadEngineConfigError(f"step_jitter is {config.step_jitter}; it must be at least 0 and below 1")
    _check_sizes(config)


def _check_sizes(config: EngineConfig) -> None:
    if config.max_num_batched_tokens < config.max_num_seqs:
        raise BadEngineConfigError(
            f"max_num_batched_tokens ({config.max_num_batched_tokens}) must be greater than or equal to max_num_seqs "
            f"({config.max_num_seqs}), so that every running request can decode in every step"
        )
    held = (config.num_blocks - 1) * config.block_size
    if held < config.max_model_len:
        raise BadEngineConfigError(
            f"one request of max_model_len {config.max_model_len} tokens does not fit: {config.num_blocks} blocks of "
            f"{config.block_size} tokens, one of them the null block, hold {held}; decrease max_model_len to {held} or "
            f"increase num_blocks"
        )


def check_request(request: EngineRequest, config: EngineConfig) -> None:
    """Raise BadRequestError or RequestTooLongError when the engine cannot run the request."""
    for name in ("prompt_tokens", "output_tokens", "n"):
        if getattr(request, name) < 1:
            raise BadRequestError(f"{name} of request {request.request_id!r} is {getattr(request, name)}; at least 1")
    if request.n > config.max_num_seqs:
        raise BadRequestError(
            f"n of request {request.request_id!r} is {request.n}; this engine runs max_num_seqs {config.max_num_seqs}"
        )
    if request.adapter is not None and not config.adapter_slots:
        raise BadRequestError(
            f"request {request.request_id!r} names adapter {request.adapter!r}; this engine has no adapter slots"
        )
    if not checks_out(request, config.block_size):
        raise BadRequestError(
            f"request {request.request_id!r} of {request.prompt_tokens} tokens has {len(request.block_hashes)} block "
            f"hashes and a tail of {len(request.tail)}; blocks are {config.block_size} tokens"
        )
    _check_length(request, config.max_model_len)


def _check_length(request: EngineRequest, limit: int) -> None:
    total = request.prompt_tokens + request.output_tokens
    if total > limit:
        raise RequestTooLongError(
            f"This model's maximum context length is {limit} tokens. However, you requested {request.output_tokens} "
            f"output tokens and your prompt contains {request.prompt_tokens} input tokens, for a total of {total} "
            "tokens. Please reduce the length of the input prompt or the number of requested output tokens.",
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            limit=limit,
        )
