"""What is asked: a model on GPUs with engine flags, checked on construction. Open flags take engine defaults."""

from dataclasses import dataclass, field

from tonnage_core.errors import BadInputError
from tonnage_core.hardware import GpuSpec
from tonnage_core.memory.constants import FITTED, FittedConstants
from tonnage_core.models import ModelShape
from tonnage_core.parallelism import Layout

LONGEST = 1 << 30
"""Tokens; no engine takes a longer sequence."""


class RequestError(BadInputError):
    """A flag has a value that no engine takes."""


class RefusedError(BadInputError):
    """The engine refuses this combination of model and flags before it loads anything."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding. `draft`: a separate model; `layers`: multi-token-prediction layers of the model itself."""

    tokens: int
    draft: ModelShape | None = None
    layers: int = 0


@dataclass(frozen=True, slots=True)
class Adapters:
    """LoRA slots resident on the GPU and the largest rank they take."""

    slots: int
    rank: int = 16


@dataclass(frozen=True)
class MemoryRequest:
    """One question to `memory_report`.

    `gpu_memory_gib` replaces the card's memory (what CUDA reports); `pool_gib` replaces the computed KV pool of every
    stage. `dtype`: auto, bf16, fp16, fp32, or a weight format for every projection of an unquantised checkpoint.
    `None` means the engine's default for that version and card.
    """

    shape: ModelShape
    gpu: GpuSpec | None = None
    gpu_memory_gib: float | None = None
    engine: str = "vllm"
    engine_version: str = ""
    layout: Layout = field(default_factory=Layout)
    dtype: str = "auto"
    kv_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    gpu_memory_utilization: float | None = None
    enforce_eager: bool = False
    pool_gib: float | None = None
    prefix_caching: bool | None = None
    hybrid_groups: bool = True
    decode_context_parallel: int = 1
    redundant_experts: int = 0
    multimodal: bool = True
    adapters: Adapters | None = None
    speculation: Speculation | None = None
    constants: FittedConstants = FITTED
    allow_longer: bool = False
    """Take a max_model_len above the checkpoint's own limit, as an engine does when it is told to."""

    def __post_init__(self) -> None:
        for name, high in _WHOLE.items():
            _whole(name, getattr(self, name), high)
        for name in ("gpu_memory_gib", "pool_gib"):
            _positive(name, getattr(self, name))
        fraction = self.gpu_memory_utilization
        if fraction is not None and not (isinstance(fraction, int | float) and 0 < fraction <= 1):
            raise RequestError(f"gpu_memory_utilization is {fraction!r}; it must be above 0 and at most 1")
        if self.adapters is not None:
            _whole("adapter slots", self.adapters.slots, 1 << 16)
            _whole("adapter rank", self.adapters.rank, 1 << 12)
        if self.speculation is not None:
            _whole("speculative tokens", self.speculation.tokens, 64)
        if self.redundant_experts < 0 or self.redundant_experts > 1 << 16:
            raise RequestError(f"redundant_experts is {self.redundant_experts}; it must be from 0 to 65,536")


_WHOLE = {
    "max_model_len": LONGEST,
    "max_num_seqs": 1 << 20,
    "max_num_batched_tokens": LONGEST,
    "block_size": 1 << 16,
    "decode_context_parallel": 4096,
}


def _whole(name: str, value: object, high: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
        raise RequestError(f"{name} is {str(value)[:40]}; it must be a whole number from 1 to {high:,}")


def _positive(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1 << 20:
        raise RequestError(f"{name} is {str(value)[:40]}; it must be a positive number of GiB")
