"""Admission by predicted TTFT: what is expected of every endpoint for a request, and refusals in time to help."""

import time
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tonnage_core.flow_control.ttft_admission import Forecast, TtftVerdict, judge, paces

if TYPE_CHECKING:
    from tonnage_router.exchange import Exchange
    from tonnage_router.gateway import Gateway

REFUSED = "ttft_over_slo"
REFUSALS_KEPT = 100


class SloAdmission:
    """The TTFT limit of each pool that asks for admission by it; without any, nothing is predicted."""

    def __init__(self, gateway: "Gateway") -> None:
        settings = gateway.settings
        self._gateway = gateway
        self._default = settings.slo.limits if settings.slo.admit else None
        self._by_pool = {name: slo.limits if slo.admit else None for name, slo in settings.slos.items()}
        self.enabled = self._default is not None or any(slo is not None for slo in self._by_pool.values())
        self._refusals: deque[dict[str, Any]] = deque(maxlen=REFUSALS_KEPT)

    def admits(self, exchange: "Exchange", pool: str, queued_s: float) -> bool:
        """Whether some endpoint can begin the answer in time, `queued_s` of waiting in the queue included; else the
        request is answered 429 with the time to come back. Asked once, when a request comes: whether it will be held is
        no matter, since nothing is held until it is late."""
        verdict = self._verdict(exchange, pool, queued_s)
        if verdict is None or verdict.admitted or verdict.best is None or verdict.retry_after_s is None:
            exchange.admission = verdict
            return True
        self._refuse(exchange, verdict, verdict.best, verdict.retry_after_s)
        return False

    def chosen(self, exchange: "Exchange") -> None:
        """The request is about to go to an endpoint. After a wait, or elsewhere before, what was forecast for it when
        it came is no longer true."""
        if exchange.admission is None or exchange.failures:
            exchange.admission = self._verdict(exchange, exchange.facts.pool, 0.0)

    def _verdict(self, exchange: "Exchange", pool: str, queued_s: float) -> TtftVerdict | None:
        slo = self._by_pool.get(exchange.facts.base, self._default)
        if slo is None:
            return None
        limit_s = slo.ttft_limit_ms(exchange.prompt_tokens) / 1e3
        return judge(self._forecasts(exchange, pool, queued_s), limit_s)

    def _forecasts(self, exchange: "Exchange", pool: str, queued_s: float) -> list[Forecast]:
        gateway = self._gateway
        candidates, tokens = gateway.eligible(pool), exchange.prompt_tokens
        by_slot, waited_s = gateway.fleet.by_slot, time.perf_counter() - exchange.started
        measured = {c.id: by_slot[c.slot].pace.tokens_per_s for c in candidates if by_slot[c.slot].pace.known}
        speeds = paces(measured, {c.id: c.gpu_speed for c in candidates})
        matched = gateway.scheduler.known_tokens(
            exchange.chain, candidates, exchange.tokens_per_block, tokens, exchange.exact
        )
        return [
            Forecast(c.id, c.prefill_tokens, max(1, tokens - matched.get(c.slot, 0)), speeds[c.id], queued_s, waited_s)
            for c in candidates
        ]

    def _refuse(self, exchange: "Exchange", verdict: TtftVerdict, best: Forecast, retry_after_s: int) -> None:
        self._refusals.append(
            {
                "request_id": (exchange.incoming.request_id or b"").decode("latin-1") or None,
                "at": datetime.fromtimestamp(time.time(), UTC).isoformat(),
                "model": exchange.facts.model,
                "tenant": exchange.tenant,
                "prompt_tokens": exchange.prompt_tokens,
                "reason": verdict.reach.value,
                "retry_after_s": retry_after_s,
                **explained(verdict),
            }
        )
        exchange.fail(
            429,
            f"the first token would come after {best.ttft_s or 0.0:.1f} s on the best endpoint, over the limit of "
            f"{verdict.limit_s:g} s; try again in {retry_after_s} s",
            REFUSED,
            retry_after_s,
        )

    def document(self) -> list[dict[str, Any]]:
        """The latest refusals, newest first, with every endpoint's forecast."""
        return list(reversed(self._refusals))


def explained(verdict: TtftVerdict) -> dict[str, Any]:
    """A verdict as the explain API shows it; times in milliseconds, null where a pace is unknown."""
    return {
        "slo_ttft_ms": round(verdict.limit_s * 1e3, 3),
        "forecasts": [
            {
                "endpoint": f.endpoint,
                "waited_ms": round(f.waited_s * 1e3, 3),
                "queued_ms": round(f.queued_s * 1e3, 3),
                "ahead_tokens": f.ahead_tokens,
                "uncached_tokens": f.uncached_tokens,
                "tokens_per_s": None if f.tokens_per_s is None else round(f.tokens_per_s, 1),
                "ttft_ms": None if f.ttft_s is None else round(f.ttft_s * 1e3, 3),
            }
            for f in verdict.forecasts
        ],
    }
