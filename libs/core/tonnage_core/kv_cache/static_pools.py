"""Pools of engines without shared groups: SGLang and TensorRT-LLM keep windows and recurrent states apart.

SGLang (`model_executor/model_runner.py`, Apache-2.0, facts only): the window pool holds 0.8 tokens for each of the full
pool, states take 0.9 parts of memory for each part of keys and values. TensorRT-LLM sets a state aside for every
sequence it may run and counts windows at full length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from tonnage_core.kv_cache.capacity import Capacity, SequenceRules
from tonnage_core.kv_cache.specs import default_block, state_bytes
from tonnage_core.kv_cache.versions import EngineFacts
from tonnage_core.models.caching import element_bytes, token_bytes
from tonnage_core.models.layers import Attention, RecurrentState
from tonnage_core.models.shape import ModelShape

WINDOW_TOKENS = 0.8
STATE_PARTS = 0.9


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Bytes one rank of a stage caches: a token at full length, a token of windows, a sequence's states."""

    token: float
    window: float
    state: int


def stage_costs(
    shape: ModelShape, facts: EngineFacts, kv_dtype: str, tp: int, bounds: tuple[int, int], speculative: int
) -> StageCosts:
    """Costs of the layers in [first, stop)."""
    size = element_bytes(kv_dtype, shape)
    token = window = 0.0
    state = 0
    for layer in shape.stack[bounds[0] : bounds[1]]:
        mixer = layer.mixer
        if isinstance(mixer, RecurrentState):
            state += state_bytes(mixer, tp, speculative)
            continue
        cost = token_bytes(mixer, size, kv_dtype, tp)
        if facts.hybrid_groups and isinstance(mixer, Attention) and mixer.window:
            window += cost
        else:
            token += cost
    return StageCosts(token, window, state)


def static_capacity(
    shape: ModelShape,
    facts: EngineFacts,
    costs: Sequence[StageCosts],
    pools: Sequence[float],
    rules: SequenceRules,
    sequences: int,
    block: int | None,
) -> Capacity:
    """Tokens and concurrency of the tightest stage; tokens come in whole pages of the engine."""
    page = block or default_block(shape, facts)
    held = [_stage(facts, cost, pool, rules, sequences) for cost, pool in zip(costs, pools, strict=True)]
    stage = min(range(len(held)), key=lambda index: held[index])
    tokens = int(held[stage][0] // page) * page
    cost = costs[stage]
    share = WINDOW_TOKENS if cost.token else 1.0
    concurrency = min(tokens / rules.max_model_len, held[stage][1])
    return Capacity(
        blocks=tokens // page,
        tokens=tokens,
        concurrency=concurrency,
        sequence_blocks=ceil(rules.max_model_len / page),
        block_bytes=round(page * (cost.token + share * cost.window)),
        stage=stage,
    )


def _stage(
    facts: EngineFacts, cost: StageCosts, pool: float, rules: SequenceRules, sequences: int
) -> tuple[float, float]:
    """(tokens, sequences whose states fit) of one stage."""
    pool, limit = max(0.0, pool), float("inf")
    by_token = cost.token + (WINDOW_TOKENS if cost.token else 1.0) * cost.window
    if cost.state and facts.engine == "sglang" and by_token:
        limit = pool * STATE_PARTS / (1 + STATE_PARTS) / cost.state
        pool /= 1 + STATE_PARTS
    elif cost.state and by_token:
        pool = max(0.0, pool - sequences * cost.state)
        limit = float(sequences)
    elif cost.state:
        limit = pool // cost.state
    tokens = pool / by_token if by_token else limit * rules.max_model_len
    return tokens, limit
