"""Which projection of a model is stored in which format: rules of a quantisation config, resolved by module name."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tonnage_core.quantization.formats import BF16, WeightFormat
from tonnage_core.quantization.names import (
    any_regex_matches,
    normal,
    regex_matches,
    treats_layers_alike,
    wildcard_matches,
)

FUSED: Final = {
    "linear_attn.in_proj_qkv": ("linear_attn.in_proj_qkvz",),
    "linear_attn.in_proj_z": ("linear_attn.in_proj_qkvz",),
    "linear_attn.in_proj_a": ("linear_attn.in_proj_ba",),
    "linear_attn.in_proj_b": ("linear_attn.in_proj_ba",),
    "mlp.experts.gate_up_proj": (
        "mlp.experts.0.gate_proj",
        "mlp.experts.0.up_proj",
        "mlp.experts.0.w1",
        "mixer.experts.0.up_proj",
    ),
    "mlp.experts.down_proj": ("mlp.experts.0.down_proj", "mlp.experts.0.w2", "mixer.experts.0.down_proj"),
    "mlp.up_proj": ("mlp.gate_up_proj", "mlp.fc1", "mixer.up_proj", "mlp.c_fc"),
    "mlp.gate_proj": ("mlp.gate_up_proj",),
    "mlp.down_proj": ("mlp.fc2", "mixer.down_proj", "mlp.c_proj"),
    "mlp.shared_experts.up_proj": ("mlp.shared_expert.up_proj", "mixer.shared_experts.up_proj"),
    "mlp.shared_experts.gate_proj": ("mlp.shared_expert.gate_proj",),
    "mlp.shared_experts.down_proj": ("mlp.shared_expert.down_proj", "mixer.shared_experts.down_proj"),
    "mlp.latent_down_proj": ("mixer.fc1_latent_proj",),
    "mlp.latent_up_proj": ("mixer.fc2_latent_proj",),
    "self_attn.q_proj": ("self_attn.qkv_proj", "mixer.q_proj", "self_attn.Wqkv"),
    "self_attn.k_proj": ("self_attn.qkv_proj", "mixer.k_proj"),
    "self_attn.v_proj": ("self_attn.qkv_proj", "mixer.v_proj"),
    "self_attn.o_proj": ("mixer.o_proj", "self_attn.dense"),
    "self_attn.q_a_proj": ("self_attn.fused_qkv_a_proj",),
    "self_attn.kv_a_proj_with_mqa": ("self_attn.fused_qkv_a_proj",),
}
"""Other names publishers give a projection of the inventory."""


_LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class ModuleSet:
    """A set of module names and patterns, indexed so that one look-up touches few of them."""

    exact: frozenset[str] = frozenset()
    short: frozenset[str] = frozenset()
    """Names without a path: they match any part of a module."""
    by_layer: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Wildcards that name one layer, by its number."""
    wildcards: tuple[str, ...] = ()
    regexes: tuple[str, ...] = ()
    """Regular expressions that may tell layers apart."""
    layerless: tuple[str, ...] = ()
    """Regular expressions that treat every layer alike."""

    def matches(self, modules: Iterable[str]) -> bool:
        """Whether the set holds one of the names, a parent of it, or a pattern that matches it."""
        return any(self._one(module) for module in modules)

    def _one(self, module: str) -> bool:
        if self._parent(module):
            return True
        found = _LAYER.match(module)
        own = self.by_layer.get(found[1], ()) if found else ()
        if any(wildcard_matches(pattern, module) for pattern in (*own, *self.wildcards)):
            return True
        if any(regex_matches(pattern, module) for pattern in self.regexes):
            return True
        return bool(self.layerless) and any_regex_matches(self.layerless, _LAYER.sub("layers.0.", module))

    def _parent(self, module: str) -> bool:
        while module:
            if module in self.exact:
                return True
            parent, _, last = module.rpartition(".")
            if last in self.short:
                return True
            module = parent
        return False


def module_set(patterns: Iterable[object]) -> ModuleSet:
    """Sort the patterns of an ignore or target list by kind."""
    exact: set[str] = set()
    short: set[str] = set()
    by_layer: dict[str, tuple[str, ...]] = {}
    lists: dict[str, dict[str, None]] = {"wildcards": {}, "regexes": {}, "layerless": {}}
    for entry in patterns:
        text = str(entry)
        if text.startswith("re:"):
            lists["layerless" if treats_layers_alike(text[3:]) else "regexes"][text[3:]] = None
        elif "*" in text:
            pattern = normal(text)
            named = _LAYER.match(pattern)
            if named:
                by_layer[named[1]] = (*by_layer.get(named[1], ()), pattern)
            else:
                lists["wildcards"][pattern] = None
        elif "." in text:
            exact.add(normal(text))
        else:
            short.add(text)
    return ModuleSet(
        frozenset(exact), frozenset(short), by_layer, **{kind: tuple(found) for kind, found in lists.items()}
    )


@dataclass(frozen=True)
class Rule:
    """A format for the projections in `modules`, or for all of them when that is None."""

    weights: WeightFormat
    modules: ModuleSet | None = None


@dataclass(frozen=True)
class QuantizationPlan:
    """Rules in order, the first that matches wins; what `ignore` holds stays in the dense format."""

    method: str = ""
    rules: tuple[Rule, ...] = ()
    ignore: ModuleSet = field(default_factory=ModuleSet)
    kv_cache: str = ""
    """Element type of the cache a checkpoint asks for ("fp8"), or ""."""
    head: bool = False
    """Whether the method may quantise the output head; most leave it dense."""
    encoders: bool = False
    """Whether encoders are quantised where they are not ignored."""
    notes: tuple[str, ...] = ()

    def format_for(self, module: str, dense: WeightFormat = BF16) -> WeightFormat:
        """The format of one projection by its path ("layers.3.self_attn.q_proj")."""
        if not self.rules:
            return dense
        names = _names(module)
        for rule in self.rules:
            if rule.modules is not None and rule.modules.matches(names):
                return rule.weights
        fallback = next((rule.weights for rule in self.rules if rule.modules is None), None)
        if fallback is None or self.ignore.matches(names):
            return dense
        return fallback


def _names(module: str) -> tuple[str, ...]:
    """A module's own name, then the names other publishers use for it."""
    if not module.startswith("layers."):
        return (module,)
    _, index, rest = module.split(".", 2)
    return (module, *(f"layers.{index}.{alias}" for alias in FUSED.get(rest, ())))
