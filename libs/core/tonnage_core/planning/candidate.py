"""One way to set an engine up on one kind of GPU, and what the memory formulas say of it."""

from dataclasses import dataclass, replace

from tonnage_core.engine.types import EngineConfig
from tonnage_core.errors import BadInputError
from tonnage_core.memory import Adapters, MemoryPlan, MemoryRequest, Speculation, plan_memory
from tonnage_core.memory.flags import derived_max_len
from tonnage_core.memory.report import verdict_of
from tonnage_core.models import ModelShape
from tonnage_core.parallelism import Layout
from tonnage_core.planning.calibrated import coefficients_of
from tonnage_core.planning.spec import Draft, Offer, PlanSpec
from tonnage_core.planning.traffic import BLOCK
from tonnage_core.prediction.step_model import StepModel, step_model

LENGTH_STEP = 256
"""max_model_len is rounded up to a multiple of this."""
ADAPTER_SLOTS = 32
"""Adapters resident at once, where there are more of them."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Adapter ranks that vLLM takes."""


@dataclass(frozen=True, slots=True)
class Config:
    """What a replica is: GPUs, layout, formats, batch limits. None: the engine's default for the card and version."""

    offer: Offer
    layout: Layout
    precision: str = "auto"
    kv_dtype: str = "auto"
    batched_tokens: int | None = None
    max_num_seqs: int | None = None
    draft: Draft | None = None
    drafted: int = 0

    @property
    def usd_per_hour(self) -> float:
        """Price of one replica."""
        return self.layout.gpus * self.offer.usd_per_hour

    @property
    def name(self) -> str:
        """Short and unique within a plan."""
        layout = self.layout
        sizes = [f"{key}{value}" for key in ("tp", "pp", "ep", "dp") if (value := getattr(layout, key)) > 1]
        parts = [self.offer.gpu.name, "".join(sizes) or "tp1", self.precision, f"kv-{self.kv_dtype}"]
        parts += [f"budget-{self.batched_tokens}"] if self.batched_tokens else []
        parts += [f"seqs-{self.max_num_seqs}"] if self.max_num_seqs else []
        parts += [f"{self.draft.name}-{self.drafted}"] if self.draft else []
        return "/".join(parts)


@dataclass(frozen=True)
class Sized:
    """A configuration that fits: its memory plan and its step times. Token counts are of the whole replica."""

    config: Config
    memory: MemoryPlan
    model: StepModel
    max_model_len: int
    pool_tokens: int
    rows: int
    """Sequences that may run at once."""
    budget: int
    """Tokens of one step."""
    adapter_slots: int

    def engine_config(self) -> EngineConfig:
        """The same replica as the engine model takes it."""
        return EngineConfig(
            num_blocks=self.pool_tokens // BLOCK + 1,
            max_model_len=self.max_model_len,
            block_size=BLOCK,
            max_num_seqs=self.rows,
            max_num_batched_tokens=max(self.budget, self.rows),
            adapter_slots=self.adapter_slots,
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """A configuration that cannot run: `binding` is weights, activation, kv_cache, engine or context."""

    config: Config
    binding: str
    reason: str


def model_len(spec: PlanSpec) -> int:
    """The context that the longest request needs, within what the model is made for."""
    needed = -(-(spec.traffic.longest + 1) // LENGTH_STEP) * LENGTH_STEP
    return min(needed, derived_max_len(spec.shape))


def adapter_slots(spec: PlanSpec) -> int:
    """Adapters a replica keeps on the GPU."""
    load = spec.traffic.adapters
    return 0 if load is None else min(load.count, ADAPTER_SLOTS)


def memory_request(spec: PlanSpec, config: Config) -> MemoryRequest:
    """The question that decides whether the configuration fits."""
    slots, load = adapter_slots(spec), spec.traffic.adapters
    shape = spec.shape_in(config.precision)
    rank = next((rank for rank in RANKS if load and rank >= load.rank), RANKS[-1])
    return MemoryRequest(
        shape=shape,
        gpu=config.offer.gpu,
        engine=spec.engine,
        engine_version=spec.engine_version,
        layout=config.layout,
        # A shape that is quantised by now holds its formats; they are looked up once for all configurations.
        dtype="auto" if shape is not spec.shape else config.precision,
        kv_dtype=config.kv_dtype,
        max_model_len=model_len(spec),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.batched_tokens,
        adapters=Adapters(slots, rank) if slots else None,
        speculation=Speculation(config.drafted, config.draft.shape) if config.draft else None,
    )


def size(spec: PlanSpec, config: Config) -> Sized | Refused:
    """Fit the configuration, or say what keeps it from fitting."""
    request = memory_request(spec, config)
    try:
        memory = plan_memory(request)
    except BadInputError as error:
        return Refused(config, "engine", str(error))
    fits, binding, reason = verdict_of(memory)
    if not fits or memory.capacity is None:
        return Refused(config, binding, reason)
    dp, length = config.layout.dp, memory.flags.max_model_len
    budget = memory.flags.batched_tokens
    return Sized(
        config=config,
        memory=memory,
        model=_steps(spec, config, memory.shape, budget),
        max_model_len=length,
        pool_tokens=int(memory.capacity.concurrency * length) * dp,
        rows=memory.flags.max_num_seqs * dp,
        budget=budget * dp,
        adapter_slots=adapter_slots(spec),
    )


def _steps(spec: PlanSpec, config: Config, shape: ModelShape, budget: int) -> StepModel:
    return step_model(
        shape,
        config.offer.gpu,
        layout=config.layout,
        engine=spec.engine,
        engine_version=spec.engine_version,
        kv_dtype=config.kv_dtype,
        precision=config.precision,
        max_num_batched_tokens=budget * config.layout.dp,
        coefficients=coefficients_of(spec, config.offer.gpu, config.layout),
    )


def explicit(sized: Sized) -> Config:
    """The configuration with its defaults spelt out."""
    flags = sized.memory.flags
    return replace(sized.config, batched_tokens=flags.batched_tokens, max_num_seqs=flags.max_num_seqs)
