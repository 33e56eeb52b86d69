"""What an architecture fixes in code rather than in config.json: biases, gates, norms, tying, window patterns.

Keyed by `model_type`, the architecture's own name for itself, never by a model's. Source: the model classes of the
transformers library (Apache-2.0), facts only. An architecture that is not listed is counted as a gated decoder without
biases, and the shape says so in its notes.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Convention:
    """Defaults of one architecture; a field of the config wins over each of them."""

    gated: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    query_key_norm: str = ""
    """"head": one gain a head dimension; "full": one a projected channel."""
    norms: int = 2
    final_norms: int = 1
    tied: bool = False
    window_every: int = 0
    """Of this many layers one sees everything, the rest a window (0: the config says)."""
    head_bias: bool = False
    window_opt_in: bool = False
    """A window in the config counts only with use_sliding_window."""
    learned_positions: bool = False
    sinks: bool = False
    half_width: bool = False
    """`intermediate_size` is the width of both input projections together."""
    latent_by_head: bool = False
    """vLLM expands the latent keys and values of every head before it caches them."""


_PLAIN = Convention()
_QWEN2 = Convention(qkv_bias=True, window_opt_in=True)
_QWEN3 = Convention(query_key_norm="head", window_opt_in=True)
_GEMMA = Convention(tied=True, query_key_norm="head", norms=4, window_every=6)
_GPT = Convention(
    gated=False,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    norms=4,
    final_norms=2,
    tied=True,
    learned_positions=True,
)
_NEOX = replace(_GPT, tied=False, learned_positions=False)

# fmt: off
_PLAIN_TYPES = (
    "llama", "mistral", "mixtral", "granite", "granitemoe", "granitemoeshared", "granitemoehybrid", "phi3",
    "phimoe", "phi4mm", "internlm2", "internlm3", "exaone", "baichuan", "yi", "aquila", "deepseek", "deepseek_v2",
    "deepseek_v3", "deepseek_v32", "deepseek_v4", "deepseek_ref", "kimi_k2", "kimi_linear", "glm_moe_dsa",
    "glm4_moe_lite", "llama4_text", "llama4", "nemotron-nas", "smollm3", "ministral", "ministral3",
    "mistral4", "jamba", "bamba", "falcon_mamba", "mamba2", "seed_oss", "ernie4_5",
    "ernie4_5_moe", "step3p7", "step3p5", "bailing_moe",
    "bailing_moe_v2", "hunyuan_v1_dense", "xverse", "orion",
)
_QWEN2_TYPES = (
    "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_audio",
)
_QWEN3_TYPES = (
    "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_next", "qwen3_5",
    "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_omni_moe_text", "hunyuan_v1_moe", "minimax_m3",
)
_GEMMA_TYPES = (
    "gemma3", "gemma3_text", "gemma4", "gemma4_text", "gemma3n", "gemma3n_text",
)
_GPT_TYPES = (
    "gpt2", "gpt_bigcode", "opt",
)
_NEOX_TYPES = (
    "gpt_neox", "gptj", "codegen",
)
# fmt: on

CONVENTIONS: dict[str, Convention] = {
    **dict.fromkeys(_PLAIN_TYPES, _PLAIN),
    "granite": replace(_PLAIN, tied=True),
    "minicpm": replace(_PLAIN, tied=True),
    "minicpm3": replace(_PLAIN, tied=True, latent_by_head=True),
    "dbrx": _PLAIN,
    "mamba": replace(_PLAIN, tied=True),
    **dict.fromkeys(_QWEN2_TYPES, _QWEN2),
    **dict.fromkeys(_QWEN3_TYPES, _QWEN3),
    "qwen": Convention(qkv_bias=True, half_width=True),
    "mimo": replace(_QWEN2, qkv_bias=True),
    "mimo_v2_flash": replace(_PLAIN, sinks=True),
    "chatglm": Convention(qkv_bias=True),
    "glm": Convention(qkv_bias=True),
    "glm4": Convention(norms=4),
    "glm4_moe": Convention(query_key_norm="head"),
    "glm4v_text": Convention(norms=4),
    "minimax_m2": Convention(query_key_norm="full"),
    "minimax_text_01": _PLAIN,
    "exaone4": Convention(query_key_norm="head"),
    "olmo": Convention(norms=0, final_norms=0),
    "olmo2": Convention(query_key_norm="full"),
    "olmo3": Convention(query_key_norm="full"),
    "olmoe": Convention(query_key_norm="full"),
    "gemma": Convention(tied=True),
    "gemma2": Convention(tied=True, norms=4, window_every=2),
    **dict.fromkeys(_GEMMA_TYPES, _GEMMA),
    "cohere": Convention(tied=True, norms=1),
    "cohere2": Convention(tied=True, norms=1, window_every=4),
    "gpt_oss": Convention(qkv_bias=True, output_bias=True, mlp_bias=True, sinks=True, window_every=2),
    "phi": Convention(gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, final_norms=2, head_bias=True),
    "nemotron": Convention(gated=False, norms=4, final_norms=2),
    "nemotron_h": Convention(gated=False, norms=1),
    "starcoder2": Convention(
        gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norms=4, final_norms=2, tied=True
    ),
    "stablelm": Convention(norms=4, final_norms=2),
    **dict.fromkeys(_GPT_TYPES, _GPT),
    **dict.fromkeys(_NEOX_TYPES, _NEOX),
    "bloom": replace(_NEOX, tied=True),
    "falcon": Convention(gated=False, norms=4, final_norms=2, tied=True),
    "mpt": Convention(gated=False, tied=True),
}


# fmt: off
ENCODERS = frozenset((
    "albert", "bert", "camembert", "clip", "deberta", "deberta-v2", "dinov2", "distilbert", "electra", "ernie",
    "eurobert", "modernbert", "mpnet", "nomic_bert", "roberta", "siglip", "vit", "xlm-roberta", "xlm-roberta-xl",
    "xlnet",
))
# fmt: on
"""Architectures that read a whole input at once and generate nothing: they keep no KV cache."""


def convention_of(model_type: str) -> tuple[Convention, bool]:
    """The convention of an architecture, and whether it is a known one."""
    return CONVENTIONS.get(model_type, _PLAIN), model_type in CONVENTIONS
