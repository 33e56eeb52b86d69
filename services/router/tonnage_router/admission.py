"""Admission: requests go out while an endpoint has room, else wait in a fair queue, or are told when to come back.

Holding work here rather than in an engine's queue keeps it movable: the endpoint is chosen when one has room, on fresh
load, and one tenant's burst waits behind its own requests only.
"""

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any, Final

from tonnage_core.flow_control.drain_rate import DrainRate
from tonnage_core.flow_control.fair_queue import FairQueue
from tonnage_router.slo_admission import SloAdmission

if TYPE_CHECKING:
    from tonnage_router.exchange import Exchange
    from tonnage_router.gateway import Gateway

NO_TENANT: Final = "-"
ACTIVE_S: Final = 10.0
"""A tenant that sent within this time contends with others for the pool."""


class Pool:
    """The queue of one model."""

    def __init__(self, max_items: int) -> None:
        self.queue: FairQueue[Exchange] = FairQueue(max_items, lambda exchange: not exchange.ended)
        self.drain = DrainRate()
        self._seen: dict[str, float] = {}
        """When each tenant sent last, oldest first."""

    def sent(self, tenant: str, now: float) -> None:
        """`tenant` sent a request for this pool."""
        seen = self._seen
        if len(seen) > 1 or tenant not in seen:
            seen.pop(tenant, None)
        seen[tenant] = now
        while len(seen) > 1 and next(iter(seen.values())) < now - ACTIVE_S:
            del seen[next(iter(seen))]

    @property
    def contended(self) -> bool:
        """Several tenants sent lately, as of the last request."""
        return len(self._seen) > 1


class Admission:
    """Queues by pool. `waiting` is the number of queued requests, dead ones included."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._pools: dict[str, Pool] = {}
        self.slo = SloAdmission(gateway)
        self.waiting = 0
        self._pump_due = False

    def _pool(self, model: str) -> Pool:
        pool = self._pools.get(model)
        if pool is None:
            pool = self._pools[model] = Pool(self._gateway.settings.queue_requests)
        return pool

    def contended(self, model: str) -> bool:
        """Whether several tenants sent for the pool lately."""
        return self._pool(model).contended

    def submit(self, exchange: "Exchange") -> None:
        """Send the request out, queue it, or refuse it with a time to come back."""
        model = exchange.facts.pool
        pool = self._pool(model)
        now = time.monotonic()
        if exchange.account is not None:
            pool.sent(exchange.account.spec.name, now)
        at_once = not self.waiting and self.has_room(model, pool)
        if self.slo.enabled and not self.slo.admits(
            exchange, model, 0.0 if at_once else self._queued_s(pool, exchange)
        ):
            return
        if at_once:
            pool.drain.left(exchange.prompt_tokens, now)
            exchange.dispatch()
            return
        settings = self._gateway.settings
        if not self._gateway.eligible(model) and model not in settings.scale_from_zero:
            exchange.dispatch()  # finds nobody and says so
            return
        if self._too_long(pool, model, exchange):
            self._refuse(pool, exchange, "the queue is longer than its requests may wait")
            return
        self._enqueue(pool, exchange, now)

    def resume(self, exchange: "Exchange") -> None:
        """Choose anew for a request that is held. Where there is no room by now it takes its turn in the queue."""
        gateway, model = self._gateway, exchange.facts.pool
        pool = self._pool(model)
        if self.has_room(model, pool) or not (gateway.eligible(model) or model in gateway.settings.scale_from_zero):
            exchange.dispatch()
        elif gateway.holding is not None:
            gateway.holding.let_go(exchange)
            self._enqueue(pool, exchange, time.monotonic())

    def _enqueue(self, pool: Pool, exchange: "Exchange", now: float) -> None:
        if exchange.trace is not None:
            exchange.trace.queued()
        account = exchange.account
        tenant = account.spec.name if account else NO_TENANT
        weight, priority = (account.spec.weight, account.spec.priority) if account else (1.0, 0)
        cost = max(1.0, float(exchange.prompt_tokens))
        deadline = now + exchange.incoming.may_wait_s(self._gateway.settings.queue_ttl_s)
        full = not pool.queue.push(exchange, tenant, cost=cost, deadline=deadline, weight=weight, priority=priority)
        if full:
            evicted = pool.queue.make_room(tenant, weight=weight, priority=priority)
            if evicted is None:
                self._refuse(pool, exchange, "the queue is full")
                return
            pool.queue.push(exchange, tenant, cost=cost, deadline=deadline, weight=weight, priority=priority)
            if not evicted.ended:
                self._refuse(pool, evicted, "the queue is full")
        else:
            self.waiting += 1
        self.room_freed()

    def _too_long(self, pool: Pool, model: str, exchange: "Exchange") -> bool:
        """Whether the predicted wait exceeds the time to live; a tenant's own share may be shorter, so only for one
        that has no tenants to be fair to."""
        if pool.drain.rate <= 0 or not self._gateway.eligible(model):
            return False
        own_s = exchange.prompt_tokens / pool.drain.rate
        return exchange.account is None and self._queued_s(pool, exchange) + own_s > self._gateway.settings.queue_ttl_s

    def _queued_s(self, pool: Pool, exchange: "Exchange") -> float:
        """Seconds until what waits in the pool has left, at its present rate; 0 where that is unknown, and for a
        tenant, whose own share may be shorter."""
        known = exchange.account is None and pool.drain.rate > 0
        return pool.queue.waiting_cost / pool.drain.rate if known else 0.0

    def _refuse(self, pool: Pool, exchange: "Exchange", why: str) -> None:
        model = exchange.facts.pool
        if not self._gateway.eligible(model):
            exchange.fail(503, f"no endpoint serves model {model!r} now; try again later", "no_endpoint", 5)
            return
        wait = pool.drain.retry_after_s(pool.queue.waiting_cost, self._gateway.settings.queue_ttl_s)
        exchange.fail(429, f"{why}; try again in {wait} s", "overloaded", wait)

    def has_room(self, model: str, pool: Pool) -> bool:
        """Whether some endpoint that takes the model is under its limits, which are lower while tenants contend."""
        limits = self._gateway.limits
        tokens, requests = limits.endpoint_prefill_tokens, limits.endpoint_requests
        if pool.contended:
            tokens = min(tokens, limits.contended_prefill_tokens)
        for candidate in self._gateway.eligible(model):
            if candidate.prefill_tokens < tokens and candidate.requests < requests and candidate.pressure < 1.0:
                return True
        return False

    def room_freed(self) -> None:
        """Something ended or began to decode: look at the queues once this turn of the event loop is over."""
        if self.waiting and not self._pump_due:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        now = time.monotonic()
        waiting = [(model, pool) for model, pool in self._pools.items() if len(pool.queue)]
        while waiting:  # one a pool in turn: pools may share endpoints
            waiting = [(model, pool) for model, pool in waiting if self._release_one(model, pool, now)]
        self._recount()

    def _release_one(self, model: str, pool: Pool, now: float) -> bool:
        """Dispatch the pool's next request if there is room; False when there is none, or nothing waits."""
        exchange = pool.queue.pop() if self.has_room(model, pool) else None
        if exchange is None:
            return False
        if not exchange.held_s:  # else it was here before
            pool.drain.left(exchange.prompt_tokens, now)
        exchange.dispatch()
        return True

    def _recount(self) -> None:
        self.waiting = sum(len(pool.queue) for pool in self._pools.values())

    def sweep(self, now: float) -> None:
        """Expire what waited too long; `now` is monotonic seconds."""
        if not self.waiting:
            return
        for pool in self._pools.values():
            for exchange in pool.queue.expire(now):
                self._refuse(pool, exchange, "the request waited for its whole time to live")
        self._recount()
        self.room_freed()

    def lengths(self) -> dict[str, int]:
        """Queued requests by pool."""
        return {model: len(pool.queue) for model, pool in self._pools.items()}

    def document(self) -> list[dict[str, Any]]:
        """`/admin/queue`: a row a pool."""
        return [
            {
                "pool": model,
                "requests": len(pool.queue),
                "prompt_tokens": math.ceil(pool.queue.waiting_cost),
                "drain_tokens_per_s": round(pool.drain.rate, 1),
            }
            for model, pool in sorted(self._pools.items())
        ]
