"""Latency arithmetic that serving metrics share. Source: section 1 of the LLM inference guide."""


def end_to_end_ms(ttft_ms: float, tpot_ms: float, output_tokens: int) -> float:
    """TTFT + (N - 1) x TPOT."""
    return ttft_ms + (output_tokens - 1) * tpot_ms


def share_with_any_slow(slow_share: float, calls: int) -> float:
    """Share of users who see at least one slow call out of `calls` independent ones."""
    return 1 - (1 - slow_share) ** calls
