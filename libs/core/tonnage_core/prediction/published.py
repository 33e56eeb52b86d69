"""How the engines of published measurements were started, where a truth file's rows leave it out.

Source: the launch scripts of the InferenceX benchmark (github.com/SemiAnalysisAI/InferenceX, Apache-2.0; `benchmarks/`
and `benchmarks/single_node/` as of March and April 2026, the Llama scripts as of late 2025). Facts only: flags that
decide when a prompt runs, how large a step is and what the cache stores.
"""

from collections.abc import Mapping
from dataclasses import dataclass

INFERENCEX = "InferenceX"


@dataclass(frozen=True, slots=True)
class LaunchFlags:
    """Flags of one engine; None: not said, the engine's default. `hold_steps` as in `PredictRequest`."""

    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    kv_dtype: str | None = None
    hold_steps: float = 0


def launch_flags(columns: Mapping[str, str]) -> LaunchFlags:
    """Flags of the run behind a row of a truth file; all unsaid where its scripts are not known."""
    if not columns.get("source", "").startswith(INFERENCEX):
        return LaunchFlags()
    read = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}.get(columns.get("engine", ""))
    return read(columns) if read is not None else LaunchFlags()


def _whole(columns: Mapping[str, str], name: str) -> int:
    value = columns.get(name, "").strip()
    return int(value) if value.isascii() and value.isdigit() else 0


def _vllm(columns: Mapping[str, str]) -> LaunchFlags:
    config = columns.get("config", "")
    if "Llama" in config:
        return LaunchFlags(max_num_batched_tokens=8192, kv_dtype="fp8")
    if "gpt-oss" in config:
        return LaunchFlags(8192, kv_dtype="fp8" if columns.get("gpu", "").startswith("B200") else None)
    return LaunchFlags()


def _sglang(columns: Mapping[str, str]) -> LaunchFlags:
    """`--scheduler-recv-interval` 30 from 16 clients on, else 10; on B300 with FP8 10. The mean is half of it."""
    config, gpu = columns.get("config", ""), columns.get("gpu", "")
    if "Qwen3.5" in config:
        hold = 15.0 if _whole(columns, "concurrency") >= 16 else 5.0
        if "FP8" in config and gpu == "B300":
            return LaunchFlags(16384, kv_dtype="fp8", hold_steps=5.0)
        return LaunchFlags(32768, kv_dtype="fp8" if "FP" in config else None, hold_steps=hold)
    if "DeepSeek" in config:
        return LaunchFlags(32768, 0.82)
    if "GLM" in config:
        return LaunchFlags(32768, 0.85, "fp8") if gpu == "B300" else LaunchFlags(None, 0.85)
    return LaunchFlags()


def _trtllm(columns: Mapping[str, str]) -> LaunchFlags:
    """`batch_wait_timeout_iters`, with `batch_wait_max_tokens_ratio` so high that it seldom ends the wait."""
    config, clients = columns.get("config", ""), _whole(columns, "concurrency")
    short = _whole(columns, "isl") == _whole(columns, "osl") == 1024
    if "Llama" in config:
        budget = 16384 if "FP8" in config and columns.get("gpu", "").startswith("B200") else 10240
        return LaunchFlags(budget, None, "fp8", 20.0 if short and _whole(columns, "tp") < 8 else 0)
    if "gpt-oss" in config:
        return LaunchFlags(20000, None, "fp8")
    if "DeepSeek" in config:
        budget = max(8192, -(-(clients + _whole(columns, "isl") + 64) // 64) * 64)
        waits = short and "NVFP4" not in config and 64 <= clients < 256
        return LaunchFlags(budget, None, "fp8", 40.0 if waits else 0)
    return LaunchFlags()
