"""How well an engine's kernels do on a card: the physical coefficients of the time model, and their fitted values.

Efficiencies are shares of the printed (catalogue) peak, times are seconds. Fitted values come from
`benchmarks/planner/fit.py` over the public latency rows of InferenceX and the aiconfigurator gap analysis (Apache-2.0),
NVIDIA NIM and InferSim; `prediction.leave_out` refits them without a model or a card to show how far they carry.
"""

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Coefficients:
    """One engine on one kind of card."""

    memory: float = 0.75
    """Share of bandwidth while weights are read."""
    cache: float = 0.70
    """Share of bandwidth while keys and values are read."""
    gemm: float = 0.60
    """Share of the dense peak in products of 16 and 8 bits."""
    gemm_narrow: float = 0.40
    """The same in 4-bit products."""
    expert_memory: float = 0.55
    """Share of bandwidth while experts are read: grouped products of few rows."""
    expert_gemm: float = 0.35
    attention: float = 0.45
    """Share of the 16-bit peak in attention of prompts."""
    link: float = 0.60
    """Share of NVLink bandwidth in large collectives."""
    layer_s: float = 20e-6
    """Launches, norms, rotary and small kernels of one layer."""
    expert_layer_s: float = 25e-6
    """Routing and sorting of one expert layer."""
    state_layer_s: float = 15e-6
    """Small kernels of one recurrent layer."""
    collective_s: float = 12e-6
    """One small all-reduce over two ranks."""
    step_s: float = 1.5e-3
    """Scheduling, input preparation and sampling that the GPU waits for."""
    row_s: float = 8e-6
    """Host work for each sequence of a step."""
    prompt_s: float = 5e-3
    """What a step with prompt tokens costs beside their work: no graph, metadata, cache writes."""
    request_s: float = 25e-3
    """Tokenising, transport and scheduling of a request before its prompt runs."""
    burst: float = 0.10
    """Share of requests that wait as in the first burst: one in `waves`, more while later waves stay together."""


BY_NAME = tuple(field.name for field in fields(Coefficients))
DEFAULT = Coefficients()


def coefficients_for(engine: str) -> Coefficients:
    """The fitted coefficients of an engine; an engine that no row measures takes those of the mean one."""
    return replace(DEFAULT, **_ENGINES.get(engine, {}))


_ENGINES: dict[str, dict[str, float]] = {
    "vllm": {},
    "sglang": {"request_s": 90e-3},
    "trtllm": {},
}
