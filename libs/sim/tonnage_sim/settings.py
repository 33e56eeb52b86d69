"""What a simulated engine is set up with: environment variables TONNAGE_SIM_<FIELD>."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from tonnage_runtime.settings import Settings


def _names(value: object) -> object:
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return value


class KvEventsConfig(Settings):
    """vLLM's `--kv-events-config`, by the same names. Addresses are bound as they are; port `*` takes a free one."""

    enable_kv_cache_events: bool = True
    """Publish what enters and leaves the prefix cache."""
    publisher: Literal["zmq", "null"] = "zmq"
    """How."""
    endpoint: str = "tcp://*:5557"
    """ZeroMQ address of the stream."""
    replay_endpoint: str | None = None
    """Address that answers replay requests."""
    buffer_steps: Annotated[int, Field(ge=1)] = 10_000
    """Batches kept for replay."""
    hwm: Annotated[int, Field(ge=0)] = 100_000
    """Batches that may wait for a slow subscriber."""
    topic: str = ""
    """Topic of the stream."""

    @property
    def on(self) -> bool:
        """Whether anything is published."""
        return self.enable_kv_cache_events and self.publisher == "zmq"


class SimSettings(Settings):
    """Names and defaults follow vLLM's engine arguments where it has them."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen on; 0 takes a free one."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe log lines to write."""
    model: str = "meta-llama/Llama-3.1-8B"
    """Whose shape sets step times and memory: a catalogue name, a directory, or a config.json."""
    gpu: str = "H200-SXM-141GB"
    """On which GPU: a catalogue name, or a GpuProfile document."""
    tp: Annotated[int, Field(ge=1, le=64)] = 1
    """Tensor-parallel GPUs."""
    kv_dtype: str = "auto"
    """Element type of the KV cache."""
    served_model_name: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    """Names clients use, comma-separated; the model reference when empty."""
    time_scale: Annotated[float, Field(gt=0, le=10000)] = 1.0
    """Engine seconds that pass in one second."""
    seed: int = 0
    """Of generated text, output lengths and step jitter."""
    block_size: Annotated[int, Field(ge=1, le=4096)] = 16
    """Tokens a KV block."""
    num_blocks: Annotated[int, Field(ge=2)] | None = None
    """KV blocks; when absent, what the GPU's memory leaves for them."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.92
    """Share of GPU memory the engine takes."""
    max_model_len: Annotated[int, Field(ge=2)] | None = None
    """Longest prompt and output together; when absent, the model's own, or what the KV cache holds if that is less."""
    max_num_seqs: Annotated[int, Field(ge=1)] | None = None
    """Requests in one batch; when absent, vLLM's default for the GPU."""
    max_num_batched_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens in one step; when absent, vLLM's default for the GPU."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    """Order of waiting requests."""
    batching: Literal["continuous", "static"] = "continuous"
    """Static: a batch starts when the last one has ended."""
    preemption: Literal["recompute", "swap"] = "recompute"
    """What happens to a request that loses its blocks."""
    enable_prefix_caching: bool = True
    """Reuse blocks of equal prefixes."""
    enable_prompt_tokens_details: bool = True
    """Tell cached tokens in `usage`; vLLM tells them only with this argument."""
    max_loras: Annotated[int, Field(ge=0, le=1024)] = 0
    """Adapters in one batch; 0: adapters are off."""
    max_cpu_loras: Annotated[int, Field(ge=0)] | None = None
    """Adapters kept in host memory; as many as `max_loras` when absent."""
    lora_modules: dict[str, str] = Field(default_factory=dict)
    """Adapters served from the start: name to path."""
    check_lora_paths: bool = False
    """Refuse an adapter whose path is no directory here."""
    kv_events_config: KvEventsConfig | None = None
    """Publish KV events as vLLM does: JSON such as `{"endpoint": "tcp://127.0.0.1:5557"}`."""
    role: Literal["none", "both", "prefill", "decode"] = "none"
    """Disaggregated serving: send KV after a `prefill`, fetch it before a `decode`; `none` has no KV connector."""
    kv_link_gbps: Annotated[float, Field(gt=0)] = 50.0
    """GB/s at which KV comes from a prefill engine."""
    kv_link_latency_ms: Annotated[float, Field(ge=0, le=10000)] = 1.0
    """Engine milliseconds that a transfer takes before its first byte."""
    dev_mode: bool = False
    """Serve /reset_prefix_cache, /sleep, /wake_up and /is_sleeping, as VLLM_SERVER_DEV_MODE does."""
    output_tokens_median: Annotated[float, Field(gt=0, le=1e6)] = 200.0
    """Median length of an answer that nothing cuts short, tokens."""
    output_tokens_sigma: Annotated[float, Field(ge=0, le=5)] = 0.7
    """Log-standard deviation of that length."""
    step_jitter: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share by which step times vary either way."""
    flush_interval_ms: Annotated[float, Field(ge=0, le=1000)] = 2.0
    """Wall milliseconds that a stream's tokens between the first and the last may wait, to share a write."""
    start_s: Annotated[float, Field(ge=0, le=86400)] = 0.0
    """Engine seconds that a start takes before the port is open, as weights are loaded and graphs captured."""
    drain_timeout_s: Annotated[float, Field(ge=0)] = 10.0
    """Wall seconds that requests in progress get to end after SIGTERM."""
