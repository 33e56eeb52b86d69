"""Match module names of a quantisation config against the names of the weight inventory.

Publishers name the same projection differently (`model.layers.3.block_sparse_moe.gate`,
`backbone.layers.4.mixer.in_proj`, `layers.0.ffn.experts`). Patterns are rewritten to the
inventory's names; patterns that start with `re:` are tried against the usual full spellings.
"""

import re
from functools import lru_cache

from tonnage_core.errors import BadInputError

PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.", "backbone.", "transformer.")
_FULL = ("model.", "language_model.model.", "")
_CONTAINERS = {
    "attn": "self_attn",
    "attention": "self_attn",
    "ffn": "mlp",
    "block_sparse_moe": "mlp",
    "feed_forward": "mlp",
    "moe": "mlp",
}
_NESTED = re.compile(r"\([^()]*[*+}][^()]*\)[*+{]")


class PatternError(BadInputError):
    """A module pattern of a quantisation config cannot be used."""


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """A `re:` pattern; long ones and ones with nested repeats are refused, since matching them may never end."""
    if len(pattern) > 300 or _NESTED.search(pattern) or pattern.count("*") + pattern.count("+") > 12:
        raise PatternError(f"module pattern {pattern[:60]!r} is too complex; write it without nested repeats")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise PatternError(f"module pattern {pattern[:60]!r} is not a regular expression: {error}") from error


def normal(pattern: str) -> str:
    """A plain or `*` pattern in the inventory's spelling: no prefix, containers by one name."""
    for prefix in PREFIXES:
        if pattern.startswith(prefix):
            pattern = pattern[len(prefix) :]
            break
    parts = pattern.split(".")
    return ".".join(_CONTAINERS.get(part, part) for part in parts)


def spellings(module: str) -> tuple[str, ...]:
    """The full names a `re:` pattern may be written for."""
    return tuple(prefix + module for prefix in _FULL)


def regex_matches(pattern: str, module: str) -> bool:
    """Whether a `re:` pattern matches one of the spellings of a module from its start."""
    found = compiled(pattern)
    return any(found.match(name) for name in spellings(module))


@lru_cache(maxsize=8192)
def any_regex_matches(patterns: tuple[str, ...], module: str) -> bool:
    """Whether one of the `re:` patterns matches; remembered, since all layers of a model ask the same."""
    return any(regex_matches(pattern, module) for pattern in patterns)


def treats_layers_alike(pattern: str) -> bool:
    """Whether a `re:` pattern cannot tell layer numbers apart: it counts no digits and no single characters."""
    rest = re.sub(r"\\d\+|\[0-9\]\+|\\\.|\.\*|\.\+", "", pattern)
    return re.search(r"\d|\\d|\[|\.|\?|\{|\\w", rest) is None


@lru_cache(maxsize=4096)
def _wildcard(pattern: str) -> re.Pattern[str]:
    if pattern.count("*") > 8:
        raise PatternError(f"module pattern {pattern[:60]!r} has too many '*'")
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")) + r"(\..*)?$")


def wildcard_matches(pattern: str, module: str) -> bool:
    """Whether a normalised pattern with `*` matches a module or one of its parents."""
    if pattern.endswith("*") and pattern.count("*") == 1:
        return module.startswith(pattern[:-1])
    return _wildcard(pattern).match(module) is not None
