"""Latency arithmetic that serving metrics share. Source: section 1 of the LLM inference guide."""


def end_to_end_ms(ttft_ms: float, tpot_ms: float, output_tokens: int) -> float:
    """TTFT + (N - 1) x TPOT."""
    return ttft_ms + (output_tokens - 1) * tpot_ms


def share_with_any_slow(slow_share: float, calls: int) -> float:
    """Share of users who see at least one slow call out of `calls` independent ones."""
    return 1 - (1 - slow_share) ** calls


def percentile_of_calls(percent: float, fan_out: int) -> float:
    """Percentile each of `fan_out` independent calls must meet so that `percent` % of users see all of them meet it.

    100 x (p / 100)^(1/n): with 100 calls a p99 for users is a p99.99 for calls.
    """
    return float(100 * (percent / 100) ** (1 / fan_out))
