"""Learn the shipped table of factors from public measurements, and relearn it without a model or a card."""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from math import exp, log

from tonnage_core.prediction.coefficients import ADDED, BY_NAME, ENGINES, FAMILIES
from tonnage_core.prediction.fit import Noise, Sample, Slopes, fit, slopes_of

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
    *(name for name in BY_NAME if name not in ADDED),
    *(f"{name}@{tag}" for name in BY_ENGINE for tag in ENGINES),
    *(f"{name}@{tag}" for name in BY_FAMILY for tag in FAMILIES),
)
_PROMPTS = frozenset({"prompt_layer_s", "prompt_expert_layer_s"})
"""Steps with prompts run eagerly on one engine and from graphs on another: the widest differences of all."""
_HOST = frozenset({"request_s", "burst", "burst_alike", "step_s", "wait_steps"}) | _PROMPTS
"""Host code and clients differ more than kernels do."""
_LAUNCHES = frozenset({"layer_s", "expert_layer_s", "latent_layer_s", "collective_s"})


_PEAKS = frozenset({"gemm_eight", "expert_gemm"})
"""Shares of a peak that explain every row with long prompts when left loose, and then mislead on other models."""
_COMMON = 0.35
"""What all engines and cards have in common is physics, and known: its factors move by this much of a tag's …"""
_LEARNED = frozenset({"step_s"})
"""… but for what no single kernel shows."""


def spread(name: str) -> float:
    """Prior standard deviation of a log factor: tight for shares of a peak, loose for host times and clients."""
    plain, _, tag = name.partition("@")
    width = _tagged(plain) if tag else 0.5 if plain.endswith("_s") or plain in _HOST else 0.2
    if plain.startswith("burst"):
        width *= 2
    if plain in _PEAKS:
        return width * 0.3
    return width if tag or plain in _LEARNED else width * _COMMON


def _tagged(plain: str) -> float:
    if plain in _PROMPTS:
        return 0.6
    return 0.3 if plain in _HOST or plain in _LAUNCHES else 0.12


def learn(samples: Sequence[Sample], *, start: dict[str, float] | None = None, rounds: int = 12) -> dict[str, float]:
    """The table of factors (not logarithms) of samples whose models hold the prior coefficients."""
    found = fit(samples, NAMES, spread, NOISE, start=_logs(start or {}), rounds=rounds)
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


def slopes_at(samples: Sequence[Sample], table: Mapping[str, float]) -> Slopes:
    """Derivatives of every sample's answer at a table, for `relearn`."""
    return slopes_of(samples, NAMES, _logs(table))


def relearn(
    samples: Sequence[Sample], without: Collection[int], table: Mapping[str, float], slopes: Slopes
) -> dict[str, float]:
    """The table learned without some samples, from one nearby and the derivatives there: a few rounds."""
    rest = [index for index in range(len(samples)) if index not in without]
    known = {new: slopes[old] for new, old in enumerate(rest)}
    found = fit([samples[index] for index in rest], NAMES, spread, NOISE, start=_logs(table), rounds=2, slopes=known)
    return {name: exp(value) for name, value in found.items()}


def _logs(table: Mapping[str, float]) -> dict[str, float]:
    return {name: log(value) for name, value in table.items()}


def learned_widths(errors: Iterable[tuple[str, float]], levels: Mapping[str, float], groups: int) -> dict[str, float]:
    """Half width of each class: the quantile `levels[class]` of its absolute errors on what was not learned from.

    `errors` are (class, log error) of `groups` models and cards, each left out in turn. Errors of one group hang
    together, so its number, not that of the rows, tells how little a quantile is known: it grows by one in `groups`.
    A class without errors takes the largest error of all, or is left out if none.
    """
    by_class: dict[str, list[float]] = {}
    for name, error in errors:
        by_class.setdefault(name, []).append(abs(error))
    most = max((max(found) for found in by_class.values()), default=None)
    widths = {}
    for name, level in levels.items():
        found = sorted(by_class.get(name, ()))
        if found:
            widths[name] = found[min(len(found) - 1, int(level * len(found)))] * (groups + 1) / groups
        elif most is not None:
            widths[name] = most * (groups + 1) / groups
    return widths
