"""How well an engine's kernels do on a card: the physical coefficients of the time model, and their fitted values.

Efficiencies are shares of the printed (catalogue) peak, times are seconds. `prediction.fitted` holds the factors over
the prior below that public serving measurements ask for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache

from tonnage_core.hardware import GpuSpec
from tonnage_core.prediction.fitted import FITTED


@dataclass(frozen=True, slots=True)
class Coefficients:
    """One engine on one kind of card."""

    memory: float = 0.75
    """Share of bandwidth while weights are read."""
    memory_narrow: float = 0.60
    """The same for weights of 4 bits, which are unpacked on the way."""
    cache: float = 0.70
    """Share of bandwidth while keys and values are read."""
    gemm: float = 0.60
    """Share of the dense peak in products of 16 bits."""
    gemm_eight: float = 0.55
    """The same in products of 8 bits."""
    gemm_narrow: float = 0.40
    """The same in products of 4 bits."""
    overlap: float = 0.25
    """Share of the shorter of reading and computing that does not hide behind the longer one."""
    expert_memory: float = 0.55
    """Share of bandwidth while experts are read: grouped products of few rows."""
    routing: float = 0.60
    """Rows of independent choice that a row counts for: tokens of real text share experts, so fewer are read."""
    expert_gemm: float = 0.60
    """Efficiency of experts' products as a share of dense ones; padding to tiles comes on top."""
    attention: float = 0.45
    """Share of the 16-bit peak in attention of prompts."""
    latent: float = 0.30
    """Share of the 16-bit peak in latent attention of decode rows."""
    link: float = 0.60
    """Share of the link's bandwidth in large collectives."""
    layer_s: float = 20e-6
    """Launches, norms, rotary and small kernels of one layer."""
    expert_layer_s: float = 25e-6
    """Routing and sorting of one expert layer."""
    latent_layer_s: float = 10e-6
    """Small kernels of one latent-attention layer: two more projections and norms."""
    state_layer_s: float = 15e-6
    """Small kernels of one recurrent layer."""
    sparse_layer_s: float = 20e-6
    """Scoring and choosing keys in one layer of sparse attention."""
    collective_s: float = 12e-6
    """One small all-reduce over two ranks."""
    step_s: float = 1.5e-3
    """Scheduling, input preparation and sampling that the GPU waits for."""
    row_s: float = 8e-6
    """Host work for each sequence of a step."""
    growth: float = 0.0
    """Share by which host work and small kernels grow with each doubling of the decoding rows: wider tables, grids and
    samplers, products of few rows at other speeds. A calibration's alone: it depends on the host."""
    prompt_layer_s: float = 100e-6
    """What one layer of a step with prompt tokens costs beside their work: launches without a graph, cache writes."""
    prompt_expert_layer_s: float = 150e-6
    """The same of one expert layer, on top."""
    request_s: float = 4e-3
    """Tokenising, transport and scheduling of a request before its prompt runs."""
    wait_steps: float = 2.0
    """Steps between a request's arrival and its first token beside its prompt's own: half of the one under way, one
    that is planned ahead already, and what is left when the token is handed over."""
    burst: float = 0.15
    """Share of requests that wait as in the client's first burst, when lengths differ: one wave in ten, and echoes."""
    burst_alike: float = 0.25
    """The same when all lengths are alike: requests that start together then end together."""


ADDED = frozenset({"growth"})
"""Coefficients whose moves are added, since they may start at 0; all others are multiplied."""
BY_NAME = tuple(field.name for field in fields(Coefficients))
PRIOR = Coefficients()
"""What physics and single-kernel measurements suggest, before any serving measurement: where fits start."""
LARGEST_SHARE = 0.95
"""No kernel reaches more of a printed peak."""
PREFILL_FIRST = frozenset({"sglang"})
"""Engines that run waiting prompts before any decode step, not beside them."""
ENGINES = ("vllm", "sglang", "trtllm")
FAMILIES = ("hopper", "blackwell")


def engine_key(engine: str) -> str:
    """The engine whose coefficients count: NIM serves with TensorRT-LLM."""
    return "trtllm" if engine == "nim" else engine


def family(gpu: GpuSpec) -> str:
    """Data-centre generation by what the card has: 4-bit tensor cores, 8-bit ones; "" where none is measured."""
    if gpu.nvlink_gbps is None or gpu.fp8_tflops is None:
        return ""
    return "blackwell" if gpu.fp4_tflops else "hopper"


def tags(engine: str, gpu: GpuSpec) -> tuple[str, str]:
    """Under which names the table holds factors for this engine and card."""
    return engine_key(engine), family(gpu)


def from_table(table: Mapping[str, float], engine: str, gpu: GpuSpec) -> Coefficients:
    """The prior times the table's factors: `name` for all, `name@engine` and `name@family` on top."""
    values = {}
    for name in BY_NAME:
        value = getattr(PRIOR, name) * table.get(name, 1.0)
        for tag in tags(engine, gpu):
            value *= table.get(f"{name}@{tag}", 1.0)
        values[name] = bounded(name, value)
    return Coefficients(**values)


def bounded(name: str, value: float) -> float:
    """Shares stay below what a kernel can reach; times and numbers of steps are free, what is added is not negative."""
    if name in ADDED:
        return max(0.0, value)
    return value if name.endswith(("_s", "_steps")) else min(value, LARGEST_SHARE)


@lru_cache(maxsize=256)
def coefficients_for(engine: str, gpu: GpuSpec) -> Coefficients:
    """The fitted coefficients; an engine or card that no row measures takes those common to all."""
    return from_table(FITTED, engine, gpu)
