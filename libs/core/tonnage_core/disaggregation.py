"""Disaggregated prefill and decode: what moving a prompt's KV costs, and when it pays.

Source: section 9 of the LLM inference guide, whose transfer times are golden tests. Links are GB/s (10^9 bytes) in one
direction; times are seconds. The unit that both sides of the rule share is a user-second: one user waiting one second.
"""

from dataclasses import dataclass

GBIT = 0.125
"""GB/s in one Gbit/s."""
FREE_TOKENS = 256
"""Rows at which matrix products of 16-bit weights turn from memory to compute on current cards (150 to 300)."""
MOST_WAIT = 4.0
"""A prompt waits before a prefill endpoint for at most so many times its own computation longer than beside: past that
the pool is overloaded, and one user's first token would come late so that others' tokens come a little sooner."""


def kv_bytes(tokens: int, bytes_per_token: float) -> float:
    """KV of a prompt."""
    return tokens * bytes_per_token


def transfer_s(size_bytes: float, link_gbps: float, latency_s: float = 0.0, overlap: float = 0.0) -> float:
    """Time a transfer adds: a latency, and what layer-wise streaming (`overlap` 0..1) does not hide behind prefill."""
    return latency_s + (1 - overlap) * size_bytes / (link_gbps * 1e9)


@dataclass(frozen=True, slots=True)
class Handover:
    """One request as the rule sees it; seconds, bytes, tokens.

    `uncached_decode` and `uncached_prefill` are the prompt tokens that the decode and the prefill endpoint would still
    have to compute; all `prompt_tokens` but those the decode endpoint holds are moved. `prefill_s_per_token` is what a
    token costs to compute, `waiting_decode_s` and `waiting_prefill_s` the queue before each. `decode_rows` are requests
    that generate on the decode endpoint now: a prefill there stalls every one of them, but for the first `free_tokens`,
    which a step takes along while it is limited by reading weights (about the ridge point): a step of its own takes as
    long as computing them. `prefill_rows` are answers of the prefill endpoint's own. `hop_s` is the second call.
    """

    prompt_tokens: int
    uncached_decode: int
    uncached_prefill: int
    decode_rows: float
    prefill_s_per_token: float
    kv_bytes_per_token: float
    link_gbps: float
    latency_s: float = 0.001
    hop_s: float = 0.003
    overlap: float = 0.0
    free_tokens: int = FREE_TOKENS
    waiting_decode_s: float = 0.0
    waiting_prefill_s: float = 0.0
    prefill_rows: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to hand over, and the two sides in user-seconds; `reason` says it with numbers."""

    pays: bool
    aggregated_s: float
    """User-seconds lost by prefilling on the decode endpoint: the request's own wait and every stalled row's."""
    disaggregated_s: float
    """User-seconds lost by prefilling elsewhere: the request's own wait, the transfer and the second call."""
    transfer_s: float
    reason: str
    pays_unshared: bool
    """Whether it would pay if nothing were generated where the prompt is computed."""


def handover(case: Handover) -> Verdict:
    """Compare prefilling beside the decodes with prefilling elsewhere and moving the KV.

    Beside n generating requests a prefill of p seconds costs its own user p and the others n x p, less what steps take
    along for free; elsewhere it costs its user the prefill there, the transfer, the second call and a step of decoding
    for the last token, and nobody else anything; the decode endpoint's own queue passes meanwhile. So it pays with long
    uncached prompts, busy decode endpoints and quick links, and never on an idle one, nor before a prefill pool whose
    queue is over `MOST_WAIT` longer: whoever joins it delays all that come later too. Nor where answers are generated:
    the few there would wait for every such prompt.
    """
    step = case.free_tokens * case.prefill_s_per_token
    beside = max(step, case.uncached_decode * case.prefill_s_per_token)
    stall = max(0, case.uncached_decode - case.free_tokens) * case.prefill_s_per_token
    aggregated = case.waiting_decode_s + beside + stall * case.decode_rows
    moved = kv_bytes(case.uncached_decode, case.kv_bytes_per_token)
    move = transfer_s(moved, case.link_gbps, case.latency_s, case.overlap)
    elsewhere = max(step, case.uncached_prefill * case.prefill_s_per_token)
    apart = max(case.waiting_decode_s, case.waiting_prefill_s + elsewhere + move + case.hop_s) + step
    longer = case.waiting_prefill_s - case.waiting_decode_s
    overloaded = longer > MOST_WAIT * elsewhere
    unshared = apart < aggregated and not overloaded
    pays = unshared and not case.prefill_rows
    word = "pays" if pays else "does not pay"
    reason = (
        f"{word}: {apart:.3f} user-seconds apart ({move * 1e3:.1f} ms to move {moved / 1e6:.0f} MB) against "
        f"{aggregated:.3f} beside {case.decode_rows:g} decodes"
    )
    if overloaded:
        reason += f", a queue {longer:.3f} s longer before the prefill than {MOST_WAIT:g} x its {elsewhere:.3f} s allow"
    if case.prefill_rows:
        reason += f", {case.prefill_rows} answers are generated where the prompt would be computed"
    return Verdict(pays, aggregated, apart, move, reason, unshared)


def shortest_paying_prompt(
    decode_rows: float,
    prefill_s_per_token: float,
    kv_bytes_per_token: float,
    link_gbps: float,
    *,
    latency_s: float = 0.001,
    hop_s: float = 0.003,
    overlap: float = 0.0,
    free_tokens: int = FREE_TOKENS,
) -> int | None:
    """Fewest uncached prompt tokens from which on a handover pays with empty queues; None: at no length.

    n x p x (t - free) > latency + hop + t x bytes / link + p x free, solved for the tokens t.
    """
    stall = decode_rows * prefill_s_per_token
    moving = (1 - overlap) * kv_bytes_per_token / (link_gbps * 1e9)
    if stall <= moving:
        return None
    step = free_tokens * prefill_s_per_token
    return int((latency_s + hop_s + step + stall * free_tokens) / (stall - moving)) + 1
