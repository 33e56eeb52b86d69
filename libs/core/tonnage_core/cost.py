"""What serving costs. Money is US dollars, rates are per second. Source: section 1 of the LLM inference guide."""

from tonnage_core.errors import BadInputError

HOUR_S = 3600.0


def usd_per_million_tokens(usd_per_hour: float, tokens_per_s: float) -> float:
    """Price of 10^6 tokens from machines that cost `usd_per_hour` and make `tokens_per_s`.

    With tokens counted at the load that still meets the SLO this is the cost at the SLO. Raises `BadInputError` for no
    tokens: nothing made has no price a token.
    """
    if not tokens_per_s > 0:
        raise BadInputError(f"{tokens_per_s} tokens/s have no price a token; give a load above 0")
    return usd_per_hour / (tokens_per_s * HOUR_S) * 1e6


def usd_per_thousand_requests(usd_per_hour: float, requests_per_s: float) -> float:
    """Price of 10^3 requests at that rate; raises `BadInputError` for no requests."""
    if not requests_per_s > 0:
        raise BadInputError(f"{requests_per_s} requests/s have no price a request; give a load above 0")
    return usd_per_hour / (requests_per_s * HOUR_S) * 1e3


def break_even_share(small_usd: float, large_usd: float, small_rate: float, large_rate: float) -> float:
    """Share of the larger machine's rate from which on it is the cheaper one a token (above 1: never).

    A machine that is not full costs the same, so below the share the small one, filled, is cheaper.
    """
    return (large_usd / large_rate) / (small_usd / small_rate)
