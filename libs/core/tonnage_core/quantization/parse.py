"""Read the quantisation block of a config.json: fp8, compressed-tensors, ModelOpt, GPTQ, AWQ, MXFP4, bitsandbytes."""

import re
from collections.abc import Mapping
from typing import Any

from tonnage_core.errors import BadInputError
from tonnage_core.quantization import formats
from tonnage_core.quantization.formats import WeightFormat, fp8_block, integer_groups
from tonnage_core.quantization.plan import ModuleSet, QuantizationPlan, Rule, module_set


class UnknownQuantizationError(BadInputError):
    """A quantisation method or scheme that no formula covers."""


def parse_quantization(block: Mapping[str, Any] | None, expert_dtype: str = "") -> QuantizationPlan:
    """The plan of a `quantization_config`, empty when there is none. `expert_dtype` stands beside the block."""
    if not block:
        return QuantizationPlan()
    method = str(block.get("quant_method") or block.get("quant_algo") or "").lower()
    if block.get("quantized_layers") or block.get("config_groups"):
        return _grouped(block, method)
    reader = _READERS.get(method)
    if reader is None:
        raise UnknownQuantizationError(
            f"quantisation method {method[:40]!r} is not known; known: {', '.join(sorted(_READERS))}"
        )
    return reader(block, expert_dtype)


def _ignore(block: Mapping[str, Any]) -> ModuleSet:
    listed: list[Any] = []
    for name in ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers", "llm_int8_skip_modules"):
        value = block.get(name)
        listed += value if isinstance(value, list | tuple) else ()
    return module_set(listed)


def _kv_cache(block: Mapping[str, Any]) -> str:
    """The cache type a checkpoint was calibrated for."""
    named = block.get("kv_cache_quant_algo")
    scheme = block.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return "fp8" if scheme.get("num_bits") == 8 else ""
    text = str(named or scheme or "").lower()
    return "fp8" if text.startswith("fp8") else "nvfp4" if text.startswith("nvfp4") else ""


def _fp8(block: Mapping[str, Any], expert_dtype: str) -> QuantizationPlan:
    sizes = block.get("weight_block_size")
    scale = 1 if str(block.get("scale_fmt", "")) == "ue8m0" else 4
    weights = (
        fp8_block(_size(sizes[0]), _size(sizes[1]), scale)
        if isinstance(sizes, list | tuple) and len(sizes) == 2
        else formats.FP8_TENSOR
    )
    rules = [Rule(weights)]
    if expert_dtype in ("fp4", "mxfp4"):
        rules.insert(0, Rule(formats.MXFP4, module_set(["re:.*layers\\.[0-9]+\\.mlp\\.experts.*"])))
    return QuantizationPlan("fp8", tuple(rules), _ignore(block), _kv_cache(block))


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 1 << 20:
        raise UnknownQuantizationError(
            f"a block or group size of the quantisation config is {str(value)[:40]!r}; it must be from 1 to 2^20"
        )
    return value


def _group(value: Any) -> int:
    return 0 if value in (None, -1, 0) else _size(value)


def _gptq(block: Mapping[str, Any], _: str) -> QuantizationPlan:
    bits = _size(block.get("bits", block.get("w_bit", 4)))
    zero = str(block.get("quant_method", "")).lower() != "auto-round" and not block.get("sym_only", False)
    weights = integer_groups(
        bits,
        _group(block.get("group_size", block.get("q_group_size", 128))),
        zero_points=zero,
        activation_order=bool(block.get("desc_act")),
    )
    rules = []
    extra = block.get("extra_config") or block.get("dynamic")
    if isinstance(extra, Mapping):
        # AutoRound names modules with their bits; GPTQModel excludes by "-:" and a regular expression.
        kept = [
            str(name) for name, value in extra.items() if isinstance(value, Mapping) and value.get("bits") in (16, 32)
        ]
        kept += ["re:" + str(name)[2:] for name in extra if str(name).startswith("-:")]
        rules.append(Rule(formats.BF16, module_set(kept)))
    return QuantizationPlan("gptq", (*rules, Rule(weights)), _ignore(block), head=bool(block.get("lm_head")))


def _mxfp4(block: Mapping[str, Any], _: str) -> QuantizationPlan:
    """Only experts are stored in MXFP4."""
    experts = module_set(["re:.*\\.mlp\\.experts\\.(gate_up_proj|down_proj)"])
    return QuantizationPlan("mxfp4", (Rule(formats.MXFP4, experts),), _ignore(block))


def _bitsandbytes(block: Mapping[str, Any], _: str) -> QuantizationPlan:
    bits = 8 if block.get("load_in_8bit") else 4
    weights = WeightFormat(f"bnb{bits}", bits, scale_bytes=4, group_rows=1, group_columns=64 if bits == 4 else 0)
    return QuantizationPlan("bitsandbytes", (Rule(weights),), _ignore(block))


def _algorithm(name: str, group: Any = None) -> WeightFormat:
    """A ModelOpt algorithm name."""
    upper = name.upper()
    if upper.startswith("FP8"):
        if "BLOCK" in upper or "PB_WO" in upper:
            return fp8_block(128, 128)
        return formats.FP8_CHANNEL if "PC_PT" in upper else formats.FP8_TENSOR
    known = {"NVFP4": formats.NVFP4, "W4A16_NVFP4": formats.NVFP4, "MXFP4": formats.MXFP4, "MXFP8": formats.MXFP8}
    if upper in known:
        return known[upper]
    if upper in ("W4A16_AWQ", "INT4_AWQ", "W4A8_AWQ"):
        return integer_groups(4, _group(group) or 128, zero_points=False)
    if upper.startswith(("W8A8", "INT8")):
        return formats.INT8_CHANNEL
    raise UnknownQuantizationError(f"quantisation algorithm {name[:40]!r} is not known")


def _modelopt(block: Mapping[str, Any], _: str) -> QuantizationPlan:
    weights = _algorithm(str(block.get("quant_algo") or block.get("quant_method")), block.get("group_size"))
    return QuantizationPlan("modelopt", (Rule(weights),), _ignore(block), _kv_cache(block))


def _grouped(block: Mapping[str, Any], method: str) -> QuantizationPlan:
    """compressed-tensors and ModelOpt groups: a scheme and its targets."""
    rules = []
    layers = block.get("quantized_layers")
    if isinstance(layers, Mapping):
        by_algorithm: dict[str, list[str]] = {}
        for module, scheme in layers.items():
            name = scheme.get("quant_algo") if isinstance(scheme, Mapping) else None
            by_algorithm.setdefault(str(name), []).append(str(module))
        rules = [Rule(_algorithm(name), module_set(modules)) for name, modules in by_algorithm.items()]
        if method == "fp8":
            rules.append(_fp8(block, "").rules[0])
    else:
        groups = block.get("config_groups")
        for group in groups.values() if isinstance(groups, Mapping) else ():
            rules.append(_group_rule(group, str(block.get("format", ""))))
    encoders = method == "compressed-tensors"
    return QuantizationPlan(method, tuple(rules), _ignore(block), _kv_cache(block), head=True, encoders=encoders)


def _group_rule(group: Any, default_format: str) -> Rule:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise UnknownQuantizationError("a group of the quantisation config has no weights scheme")
    listed = group.get("targets")
    targets = listed if isinstance(listed, list | tuple) and listed else ["Linear"]
    everywhere = all(str(target) in ("Linear", "FusedMoE") for target in targets)
    chosen = _scheme(weights, group.get("input_activations"), str(group.get("format") or default_format))
    return Rule(chosen, None if everywhere else module_set(targets))


def _scheme(weights: Mapping[str, Any], activations: Any, packing: str) -> WeightFormat:
    bits, kind = weights.get("num_bits"), str(weights.get("type", "int"))
    strategy, group = str(weights.get("strategy") or ""), _group(weights.get("group_size"))
    if bits == 4 and kind == "float":
        return formats.MXFP4 if group == 32 else formats.NVFP4
    if bits == 8 and kind == "float":
        if strategy == "block":
            return fp8_block(*_block_sides(weights.get("block_structure")))
        if group == 32:
            return formats.MXFP8
        return formats.FP8_CHANNEL if strategy in ("channel", "token") else formats.FP8_TENSOR
    if kind == "int" and bits in (2, 3, 4, 8):
        if bits == 8 and isinstance(activations, Mapping):
            return formats.INT8_CHANNEL
        ordered = weights.get("actorder") in ("group", "weight", True)
        return integer_groups(int(bits), group, zero_points=weights.get("symmetric") is False, activation_order=ordered)
    what = f"weights of {str(bits)[:20]} {kind[:20]} bits ({packing[:40] or 'no format'})"
    raise UnknownQuantizationError(f"{what} are not known")


def _block_sides(stated: Any) -> tuple[int, int]:
    """Rows and columns of a scale's block: a pair, or text such as "128x128"."""
    if isinstance(stated, str) and re.fullmatch(r"\d{1,6}x\d{1,6}", stated):
        stated = [int(side) for side in stated.split("x")]
    if not isinstance(stated, list | tuple) or len(stated) != 2:
        return 128, 128
    return _size(stated[0]), _size(stated[1])


_READERS = {
    "fp8": _fp8,
    "fbgemm_fp8": lambda block, _: QuantizationPlan("fbgemm_fp8", (Rule(formats.FP8_CHANNEL),), _ignore(block)),
    "gptq": _gptq,
    "gptq_marlin": _gptq,
    "awq": _gptq,
    "awq_marlin": _gptq,
    "auto-round": _gptq,
    "auto_round": _gptq,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "nvfp4": _modelopt,
}
