"""Which ended requests met their SLO, which did not, and which say nothing of the service."""

from typing import TYPE_CHECKING, Final

from tonnage_core.slo import Verdict
from tonnage_router.settings import RouterSettings

if TYPE_CHECKING:
    from tonnage_router.exchange import Exchange

OWN_LIMIT: Final = "rate_limit_exceeded"
"""A tenant over its own limit was told so as agreed: the service kept its word."""


class Objectives:
    """The SLO of each pool, and the verdict on each request of it."""

    def __init__(self, settings: RouterSettings) -> None:
        self._slo = settings.slo.limits
        self._by_pool = {model: spec.limits for model, spec in settings.slos.items()}

    def verdict(self, exchange: "Exchange", outcome: str, pool: str, duration_s: float) -> Verdict | None:
        """The verdict, or None for what is the client's doing: bad requests, own limits, leaving before the limit."""
        slo = self._by_pool.get(pool, self._slo)
        first_s, status = exchange.first_byte_s, exchange.status
        if outcome == "client_gone":
            waited_too_long = first_s is None and duration_s * 1e3 > slo.ttft_limit_ms(exchange.prompt_tokens)
            return Verdict.LATE if waited_too_long else None
        if outcome == OWN_LIMIT or 400 <= status < 429 or 429 < status < 500:
            return None
        if outcome != "ok" or status >= 429:
            return Verdict.FAILED
        tokens = exchange.usage.completion_tokens if exchange.usage is not None else None
        return slo.judge(first_s if exchange.facts.stream else None, duration_s, tokens, exchange.prompt_tokens)
