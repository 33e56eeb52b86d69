"""What is asked: a model on a replica under a closed-loop client; checked on construction."""

from dataclasses import dataclass, field, replace

from tonnage_core.errors import BadInputError
from tonnage_core.hardware import GpuSpec
from tonnage_core.models import ModelShape
from tonnage_core.parallelism import Layout
from tonnage_core.prediction.coefficients import Coefficients


class PredictError(BadInputError):
    """A question that no engine can be asked."""


@dataclass(frozen=True)
class PredictRequest:
    """`isl` prompt tokens of which `prefix` are cached already, `osl` tokens out, `concurrency` requests in flight over
    the whole replica (all data-parallel ranks). Lengths may be means and so fractions. None: the engine's default.

    `waves`: requests that each client slot sends one after another; all slots start together, so one request in
    `waves` waits in the first burst. `length_spread`: width of the range that output lengths are drawn from, over its
    mean; 0: all alike. `hold_steps`: decode steps that the engine lets a new prompt wait on average before it looks at
    it: half of SGLang's --scheduler-recv-interval, TensorRT-LLM's batch_wait_timeout_iters.
    """

    shape: ModelShape
    gpu: GpuSpec
    isl: float
    osl: float
    concurrency: int
    prefix: float = 0
    layout: Layout = field(default_factory=Layout)
    engine: str = "vllm"
    engine_version: str = ""
    precision: str = "auto"
    kv_dtype: str = "auto"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    gpu_memory_gib: float | None = None
    pool_gib: float | None = None
    enforce_eager: bool = False
    waves: float = 10
    length_spread: float = 0.2
    hold_steps: float = 0
    coefficients: Coefficients | None = None

    def __post_init__(self) -> None:
        _number("isl", self.isl, 1, 1 << 30)
        _number("osl", self.osl, 1, 1 << 30)
        _number("prefix", self.prefix, 0, 1 << 30)
        _number("waves", self.waves, 1, 1e9)
        _number("length_spread", self.length_spread, 0, 2)
        _number("hold_steps", self.hold_steps, 0, 10_000)
        if self.prefix > self.isl:
            raise PredictError(
                f"prefix {self.prefix:g} is more than isl {self.isl:g}: it is the cached part of the prompt"
            )
        whole = isinstance(self.concurrency, int) and not isinstance(self.concurrency, bool)
        if not whole or not 1 <= self.concurrency <= 1 << 20:
            raise PredictError(f"concurrency is {str(self.concurrency)[:40]}; it must be a whole number from 1 to 2^20")
        for name, high in (("gpu_memory_utilization", 1.0), ("gpu_memory_gib", 1e6), ("pool_gib", 1e6)):
            value = getattr(self, name)
            if value is not None:
                _number(name, value, 1e-6, high)
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, name)
            if value is not None:
                _number(name, value, 1, 1 << 30)

    def at(self, isl: float, osl: float, concurrency: int) -> "PredictRequest":
        """The same engine asked at another point; the prefix is cut to the prompt."""
        return replace(self, isl=isl, osl=osl, concurrency=concurrency, prefix=min(self.prefix, isl))


def _number(name: str, value: object, low: float, high: float) -> None:
    # Compared as it is: an integer may be larger than any float. No NaN is in the range.
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise PredictError(f"{name} is {str(value)[:40]}; it must be a number from {low:g} to {high:g}")
