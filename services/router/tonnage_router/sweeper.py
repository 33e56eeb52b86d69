"""The one timer of the data path: silence, slow clients, idle connections, breakers and the access log."""

import asyncio
import time

from tonnage_router.exchange import Exchange
from tonnage_router.gateway import Gateway
from tonnage_router.observations import Observations
from tonnage_router.wire.client import ClientConnection

TICK_S = 0.25
LINGER_S = 5.0
"""A refused client may take this long to read the answer and close."""
PRESSURE_FADE = 0.25
"""Back-pressure an endpoint sheds at each sweep: an answer 429 or 503 counts for a second."""


class Sweeper:
    """Counts silent sweeps on connections instead of arming a timer a request."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._observed = Observations(gateway)
        settings = gateway.settings
        self._first_byte = settings.first_byte_timeout_s / TICK_S
        self._idle = settings.idle_timeout_s / TICK_S
        self._client = settings.client_timeout_s / TICK_S
        self._keep_alive = settings.keep_alive_s / TICK_S

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.sweep(time.monotonic())

    def sweep(self, now: float) -> None:
        """One pass; `now` is monotonic seconds."""
        for exchange in list(self._gateway.active):
            self._exchange(exchange)
        for client in list(self._gateway.clients):
            self._connection(client)
        for endpoint in self._gateway.fleet:
            endpoint.pool.sweep(now)
            if not endpoint.breaker.closed:
                self._gateway.refresh(endpoint)
            candidate = endpoint.candidate
            if candidate.pressure:
                candidate.pressure = max(0.0, candidate.pressure - PRESSURE_FADE)
        self._observed.expire(now)
        self._gateway.admission.sweep(now)
        if self._gateway.holding is not None:
            self._gateway.holding.sweep()
        self._gateway.access_log.flush()

    def _exchange(self, exchange: Exchange) -> None:
        upstream = exchange.upstream
        if upstream is None or exchange.client.paused:
            return
        upstream.quiet_ticks += 1
        if not upstream.answered and not exchange.facts.stream:
            self._guess_prefill(exchange)
        limit = self._idle if upstream.answered else self._first_byte
        if upstream.quiet_ticks > limit:
            upstream.timed_out()

    def _guess_prefill(self, exchange: Exchange) -> None:
        """An answer in one piece does not show when its prompt was computed: take the endpoint's pace."""
        endpoint = exchange.endpoint
        if endpoint is not None and exchange.waited_s > exchange.ahead_tokens / endpoint.pace.tokens_per_s:
            self._gateway.prefilled(exchange)

    def _connection(self, client: ClientConnection) -> None:
        if client.exchange is not None or client.paused:
            if client.paused:
                client.quiet_ticks += 1
                if client.quiet_ticks > self._client:
                    client.abort()
            return
        client.quiet_ticks += 1
        if client.quiet_ticks > self._limit(client):
            self._expired(client)

    def _limit(self, client: ClientConnection) -> float:
        if client.refused:
            return LINGER_S / TICK_S
        return self._keep_alive if client.idle else self._client

    def _expired(self, client: ClientConnection) -> None:
        if client.refused:
            client.abort()
        elif client.idle:
            client.close()
        else:
            client.refuse(408, "the request did not arrive in time")
