"""The one timer of the data path: silence, slow clients, idle connections, breakers and the access log."""

import asyncio
import time
from typing import TYPE_CHECKING

from tonnage_router.observations import Observations

if TYPE_CHECKING:
    from tonnage_router.exchange import Exchange
    from tonnage_router.gateway import Gateway
    from tonnage_router.wire.client import ClientConnection

TICK_S = 0.25
REST_S = 1.0
"""Between two sweeps while no client is connected and nothing else has a limit that is counted in ticks."""
LINGER_S = 5.0
"""A refused client may take this long to read the answer and close."""
PRESSURE_FADE = 0.25
"""Back-pressure an endpoint sheds at each sweep: an answer 429 or 503 counts for a second."""


class Sweeper:
    """Counts silent sweeps on connections instead of arming a timer a request."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._observed = Observations(gateway)
        settings = gateway.settings
        self._first_byte = settings.first_byte_timeout_s / TICK_S
        self._idle = settings.idle_timeout_s / TICK_S
        self._client = settings.client_timeout_s / TICK_S
        self._keep_alive = settings.keep_alive_s / TICK_S
        self._timer: asyncio.TimerHandle | None = None
        self._resting = False
        self._calm = False
        """Whether the last sweep found nothing that the next ones are counted for."""
        gateway.sweeper = self

    def start(self) -> None:
        """Sweep each tick from now on."""
        self._resting = False
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def stop(self) -> None:
        """Sweep no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """A client has come: where sweeps rest, do now what the rest has left, and sweep each tick again."""
        if self._resting and self._timer is not None:
            self._timer.cancel()
            self._resting = False
            self._timer = asyncio.get_running_loop().call_later(0, self._tick)  # a failure is not the client's

    def _tick(self) -> None:
        """A sweep that fails is the event loop's to report, and not the last one."""
        try:
            self.sweep(time.monotonic())
        finally:
            self._resting = self._calm
            wait_s = max(REST_S, TICK_S) if self._calm else TICK_S
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def sweep(self, now: float) -> None:
        """One pass; `now` is monotonic seconds."""
        gateway = self._gateway
        self._calm = not gateway.clients and not gateway.active
        if gateway.active:
            for exchange in list(gateway.active):
                self._exchange(exchange)
        if gateway.clients:
            for client in list(gateway.clients):
                self._connection(client)
        self._endpoints(now)
        self._observed.expire(now)
        gateway.admission.sweep(now)
        if gateway.holding is not None:
            gateway.holding.sweep()
        gateway.access_log.flush()

    def _endpoints(self, now: float) -> None:
        for endpoint in self._gateway.fleet.by_id.values():
            endpoint.pool.sweep(now)
            if endpoint.pool.idle:
                self._calm = False
            if not endpoint.breaker.closed:
                self._calm = False
                self._gateway.refresh(endpoint)
            candidate = endpoint.candidate
            if candidate.pressure:
                self._calm = False
                candidate.pressure = max(0.0, candidate.pressure - PRESSURE_FADE)

    def _exchange(self, exchange: "Exchange") -> None:
        upstream = exchange.upstream
        if upstream is None or exchange.client.paused:
            return
        upstream.quiet_ticks += 1
        if not upstream.answered and not exchange.facts.stream:
            self._guess_prefill(exchange)
        limit = self._idle if upstream.answered else self._first_byte
        if upstream.quiet_ticks > limit:
            upstream.timed_out()

    def _guess_prefill(self, exchange: "Exchange") -> None:
        """An answer in one piece does not show when its prompt was computed: take the endpoint's pace."""
        endpoint = exchange.endpoint
        if endpoint is not None and exchange.waited_s > exchange.ahead_tokens / endpoint.pace.tokens_per_s:
            self._gateway.prefilled(exchange)

    def _connection(self, client: "ClientConnection") -> None:
        if client.exchange is not None or client.paused:
            if client.paused:
                client.quiet_ticks += 1
                if client.quiet_ticks > self._client:
                    client.abort()
            return
        client.quiet_ticks += 1
        if client.quiet_ticks > self._limit(client):
            self._expired(client)

    def _limit(self, client: "ClientConnection") -> float:
        if client.refused:
            return LINGER_S / TICK_S
        return self._keep_alive if client.idle else self._client

    def _expired(self, client: "ClientConnection") -> None:
        if client.refused:
            client.abort()
        elif client.idle:
            client.close()
        else:
            client.refuse(408, "the request did not arrive in time")
