"""Prefill and decode pools of one model, decided together.

A request needs both: prompts at the arrival rate on one side, tokens at the same rate on the other. So both targets
come from one forecast of arrivals, they go to zero and come from zero together, and neither shrinks below what the
other still sends it.
"""

import math
from dataclasses import dataclass

from tonnage_core.autoscaling.capacity import ReplicaCost, RequestMix


@dataclass(frozen=True, slots=True)
class PairLimits:
    """Replicas of each pool, and how full each may run (0 to 1)."""

    prefill_max: int
    decode_max: int
    min_replicas: int = 0
    prefill_fill: float = 0.7
    """Prompts come in bursts and wait for each other."""
    decode_fill: float = 0.85


@dataclass(frozen=True, slots=True)
class PairTargets:
    """Replicas of both pools; `limited` names the pool whose maximum holds the other back."""

    prefill: int
    decode: int
    limited: str = ""


def pair_targets(
    arrivals_rps: float, mix: RequestMix, prefill: ReplicaCost, decode: ReplicaCost, limits: PairLimits
) -> PairTargets:
    """Replicas for `arrivals_rps` of forecast requests; zero and zero when nothing comes and nothing has to stay.

    A pool at its maximum caps the other at what that maximum lets through: more would wait idle.
    """
    if arrivals_rps <= 0:
        return PairTargets(limits.min_replicas, limits.min_replicas)
    prefill_s = prefill.prefill_s(mix.prompt)
    decode_s = mix.output * (decode.token_s + (mix.prompt + mix.output / 2) * decode.kv_s)
    prefill_rps = limits.prefill_max * limits.prefill_fill / prefill_s
    decode_rps = limits.decode_max * limits.decode_fill / decode_s
    served = min(arrivals_rps, prefill_rps, decode_rps)
    limited = "" if served == arrivals_rps else "prefill" if prefill_rps <= decode_rps else "decode"
    floor = max(1, limits.min_replicas)
    return PairTargets(
        prefill=min(limits.prefill_max, max(floor, _ceil(served * prefill_s / limits.prefill_fill))),
        decode=min(limits.decode_max, max(floor, _ceil(served * decode_s / limits.decode_fill))),
        limited=limited,
    )


def _ceil(value: float) -> int:
    return math.ceil(value - 1e-9)


def coupled(prefill: int, decode: int, needs: PairTargets | None) -> tuple[int, int]:
    """Both own targets, none below what the other pool sends it (`needs`; None: not known), none alone at zero."""
    if needs is not None and needs.prefill:
        prefill, decode = max(prefill, needs.prefill), max(decode, needs.decode)
    if not prefill or not decode:
        both = min(1, max(prefill, decode))
        prefill, decode = max(prefill, both), max(decode, both)
    return prefill, decode
