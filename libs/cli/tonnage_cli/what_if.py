"""What-ifs of `tonnage simulate`: other options for the same trace, and how the figures differ."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

_FIXED = ("trace", "as_json", "what_if", "limit", "max_input", "strict")
"""Options that make another trace of it or only change what is printed."""
COLUMNS = ("change", "TTFT p50", "TTFT p99", "TPOT p99", "attainment", "goodput", "hits", "preempted", "GPU hours")


@dataclass(frozen=True)
class Change:
    """Options by parameter name, as the command line gave them."""

    text: str
    values: dict[str, Any]


def read_change(text: str, context: click.Context) -> Change:
    """`option=value[,option=value]`, checked as the options themselves are; a click error (exit 2) for a wrong one."""
    options = {param.name: param for param in context.command.params if param.name not in _FIXED}
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        key = name.strip().removeprefix("--").replace("-", "_")
        if not equals or key not in options:
            known = ", ".join(sorted(str(each).replace("_", "-") for each in options))
            words = f"{part.strip()!r} is no OPTION=VALUE; options: {known}"
            raise click.BadParameter(words, param_hint="--what-if")
        param = options[key]
        values[key] = param.type.convert(value.strip(), param, context)
    return Change(text, values)


def compared(base: dict[str, Any], change: Change, other: dict[str, Any]) -> dict[str, Any]:
    """The other run's figures, and by which factor each differs from the base run."""
    figures = {name: other[name] for name in _FIGURES}
    return {
        "change": {name.replace("_", "-"): value for name, value in change.values.items()},
        **figures,
        "engine": other["engine"],
        "ratio": {label: _ratio(_at(other, path), _at(base, path)) for label, path in _RATIOS.items()},
    }


_FIGURES = (
    "requests",
    "ttft_ms",
    "tpot_ms",
    "itl_ms",
    "e2e_ms",
    "slo_attainment",
    "goodput_rps",
    "prefix",
    "output_tokens",
    "duration_s",
    "replicas",
    "gpu_hours",
    "preemptions",
    "counters",
    "busy_share",
    "decisions_sha256",
)
_RATIOS = {
    "ttft_p50": ("ttft_ms", "p50"),
    "ttft_p99": ("ttft_ms", "p99"),
    "tpot_p99": ("tpot_ms", "p99"),
    "goodput": ("goodput_rps",),
    "hit_tokens": ("prefix", "hit_tokens"),
    "gpu_hours": ("gpu_hours",),
}


def _at(document: dict[str, Any], path: tuple[str, ...]) -> float | None:
    value: Any = document
    for key in path:
        value = value[key]
    return value  # type: ignore[no-any-return]


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else round(value / base, 4)


def what_if_rows(document: dict[str, Any]) -> Iterator[list[Any]]:
    """The base run and each what-if as rows of a table."""
    for each in ({"change": {}, **document}, *document["what_if"]):
        name = ", ".join(f"{key}={value}" for key, value in each["change"].items()) or "as given"
        yield [
            name,
            each["ttft_ms"]["p50"],
            each["ttft_ms"]["p99"],
            each["tpot_ms"]["p99"],
            each["slo_attainment"],
            each["goodput_rps"],
            each["prefix"]["hit_rate"],
            each["preemptions"],
            each["gpu_hours"],
        ]
