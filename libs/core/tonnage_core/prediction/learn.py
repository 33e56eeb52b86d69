"""Learn the shipped table of factors from public measurements, and relearn it without a model or a card."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from math import exp, log

from tonnage_core.prediction.coefficients import BY_NAME, ENGINES, FAMILIES
from tonnage_core.prediction.fit import Noise, Sample, fit

NOISE = Noise(0.10, 0.22, robust=True, alike=(0.25, 0.60))
BY_ENGINE = (
    "layer_s",
    "expert_layer_s",
    "latent_layer_s",
    "step_s",
    "request_s",
    "prompt_layer_s",
    "prompt_expert_layer_s",
    "wait_steps",
    "collective_s",
    "burst",
    "burst_alike",
    "memory",
    "cache",
    "attention",
    "gemm",
    "gemm_eight",
    "gemm_narrow",
    "expert_memory",
    "expert_gemm",
)
"""Coefficients that differ by engine: its kernels and its host code."""
BY_FAMILY = (
    "prompt_layer_s",
    "prompt_expert_layer_s",
    "memory",
    "cache",
    "gemm",
    "gemm_eight",
    "expert_memory",
    "expert_gemm",
)
"""Coefficients that differ by generation of card."""
NAMES = (
    *BY_NAME,
    *(f"{name}@{tag}" for name in BY_ENGINE for tag in ENGINES),
    *(f"{name}@{tag}" for name in BY_FAMILY for tag in FAMILIES),
)
_PROMPTS = frozenset({"prompt_layer_s", "prompt_expert_layer_s"})
"""Steps with prompts run eagerly on one engine and from graphs on another: the widest differences of all."""
_HOST = frozenset({"request_s", "burst", "burst_alike", "step_s", "wait_steps"}) | _PROMPTS
"""Host code and clients differ more than kernels do."""
_LAUNCHES = frozenset({"layer_s", "expert_layer_s", "latent_layer_s", "collective_s"})


def spread(name: str) -> float:
    """Prior standard deviation of a log factor: tight for shares of a peak, loose for host times."""
    plain, _, tag = name.partition("@")
    if tag and plain in _PROMPTS:
        return 0.6
    if tag:
        return 0.3 if plain in _HOST or plain in _LAUNCHES else 0.12
    return 0.5 if plain.endswith("_s") or plain in _HOST else 0.2


def learn(samples: Sequence[Sample], *, start: dict[str, float] | None = None, rounds: int = 12) -> dict[str, float]:
    """The table of factors (not logarithms) of samples whose models hold the prior coefficients."""
    logs = {name: log(value) for name, value in (start or {}).items()}
    found = fit(samples, NAMES, spread, NOISE, start=logs, rounds=rounds)
    return {name: exp(value) for name, value in found.items()}


def folds(
    samples: Sequence[Sample],
    group: Callable[[Sample], Hashable],
    *,
    start: dict[str, float] | None = None,
    rounds: int = 12,
) -> Iterator[tuple[list[int], dict[str, float]]]:
    """(indices left out, table learned from the rest) for every group."""
    groups: dict[Hashable, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(group(sample), []).append(index)
    for left in groups.values():
        out = set(left)
        rest = [sample for index, sample in enumerate(samples) if index not in out]
        yield left, learn(rest, start=start, rounds=rounds)
