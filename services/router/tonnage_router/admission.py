"""Admission: requests go out while an endpoint has room, else wait in a fair queue, or are told when to come back.

Holding work here rather than in an engine's queue keeps it movable: the endpoint is chosen when one has room, on fresh
load, and one tenant's burst waits behind its own requests only.
"""

import asyncio
import math
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from tonnage_core.flow_control.drain_rate import DrainRate
from tonnage_core.flow_control.fair_queue import FairQueue
from tonnage_core.scheduling import Room
from tonnage_core.scheduling.filters import prompt_class
from tonnage_router.slo_admission import SloAdmission

if TYPE_CHECKING:
    from tonnage_router.exchange import Exchange
    from tonnage_router.gateway import Gateway

NO_TENANT: Final = "-"
ACTIVE_S: Final = 10.0
"""A tenant that sent within this time contends with others for the pool."""


class Contention:
    """Who sends for one model."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        """When each tenant sent last, oldest first."""

    def sent(self, tenant: str, now: float) -> None:
        """`tenant` sent a request."""
        seen = self._seen
        if len(seen) > 1 or tenant not in seen:
            seen.pop(tenant, None)
        seen[tenant] = now
        while len(seen) > 1 and next(iter(seen.values())) < now - ACTIVE_S:
            del seen[next(iter(seen))]

    def __bool__(self) -> bool:
        """Several tenants sent lately, as of the last request."""
        return len(self._seen) > 1


class Pool:
    """The queue of one model, or of one length class of its prompts where some endpoints take one class alone."""

    def __init__(self, model: str, length_class: str | None, contention: Contention, max_items: int) -> None:
        self.model = model
        self.length_class = length_class
        self.contention = contention
        self.queue: FairQueue[Exchange] = FairQueue(max_items, lambda exchange: not exchange.ended)
        self.drain = DrainRate()


class Admission:
    """Queues by pool. `waiting` is the number of queued requests, dead ones included."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        limits = gateway.limits
        tokens, requests = limits.endpoint_prefill_tokens, limits.endpoint_requests
        self._calm = Room(tokens, requests)
        self._contended = Room(min(tokens, limits.contended_prefill_tokens), requests)
        self._places = Room(sys.maxsize, requests)
        self._contention: dict[str, Contention] = {}
        self._pools: dict[tuple[str, str | None], Pool] = {}
        self.slo = SloAdmission(gateway)
        self.waiting = 0
        self._pump_due = False

    def _pool(self, exchange: "Exchange") -> Pool:
        model, length = exchange.facts.pool, None
        if self._gateway.scheduler.classed(model):
            length = prompt_class(exchange.prompt_tokens)
        pool = self._pools.get((model, length))
        if pool is None:
            contention = self._contention.setdefault(model, Contention())
            pool = Pool(model, length, contention, self._gateway.settings.queue_requests)
            self._pools[model, length] = pool
        return pool

    def contended(self, model: str) -> bool:
        """Whether several tenants sent for the model lately."""
        return bool(self._contention.get(model))

    def room_wanted(self, model: str) -> Room:
        """What must be free where a request for the model goes, but for what its cached prefix saves there. While
        tenants contend that is what let it go; else scorers say how much prompt a prefix is worth waiting behind."""
        return self._contended if self.contended(model) else self._places

    def submit(self, exchange: "Exchange") -> None:
        """Send the request out, queue it, or refuse it with a time to come back."""
        pool = self._pool(exchange)
        model, now = pool.model, time.monotonic()
        if exchange.account is not None:
            pool.contention.sent(exchange.account.spec.name, now)
        at_once = not self.waiting and self.has_room(pool)
        if self.slo.enabled and not self.slo.admits(
            exchange, model, 0.0 if at_once else self._queued_s(pool, exchange)
        ):
            return
        if at_once:
            exchange.dispatch()
            return
        settings = self._gateway.settings
        if not self._gateway.eligible(model) and model not in settings.scale_from_zero:
            exchange.dispatch()  # finds nobody and says so
            return
        if self._too_long(pool, exchange):
            self._refuse(pool, exchange, "the queue is longer than its requests may wait")
            return
        self._enqueue(pool, exchange, now)

    def resume(self, exchange: "Exchange") -> None:
        """Choose anew for a request that is held. Where there is no room by now it takes its turn in the queue."""
        gateway, pool = self._gateway, self._pool(exchange)
        serves = gateway.eligible(pool.model) or pool.model in gateway.settings.scale_from_zero
        if not serves or self.has_room(pool):
            exchange.dispatch()
        elif gateway.holding is not None:
            gateway.holding.let_go(exchange)
            self._enqueue(pool, exchange, time.monotonic())

    def _enqueue(self, pool: Pool, exchange: "Exchange", now: float) -> None:
        """To the pool's queue, for what is left of the time that the request may wait here, held or queued."""
        if exchange.trace is not None:
            exchange.trace.queued()
        account = exchange.account
        tenant = account.spec.name if account else NO_TENANT
        weight, priority = (account.spec.weight, account.spec.priority) if account else (1.0, 0)
        cost = max(1.0, float(exchange.prompt_tokens))
        waited_s, exchange.admission = time.perf_counter() - exchange.started, None
        deadline = now + exchange.incoming.may_wait_s(self._gateway.settings.queue_ttl_s) - waited_s
        if not len(pool.queue):
            pool.drain.begin(now)
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

    def _too_long(self, pool: Pool, exchange: "Exchange") -> bool:
        """Whether the predicted wait exceeds what the request may wait; a tenant's own share may be shorter, so only
        for one that has no tenants to be fair to."""
        if pool.drain.rate <= 0 or not self._gateway.eligible(pool.model):
            return False
        wait_s = self._queued_s(pool, exchange) + exchange.prompt_tokens / pool.drain.rate
        return exchange.account is None and wait_s > exchange.incoming.may_wait_s(self._gateway.settings.queue_ttl_s)

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

    def has_room(self, pool: Pool) -> bool:
        """Whether some endpoint that takes the pool's prompts is under its limits, which are lower while tenants
        contend."""
        room = self._contended if pool.contention else self._calm
        takers = self._gateway.eligible(pool.model)
        if pool.length_class is not None:
            takers = [c for c in takers if c.length_class in (None, pool.length_class)] or takers
        return room.exists(takers)

    def room_freed(self) -> None:
        """Something ended or began to decode: look at the queues once this turn of the event loop is over."""
        if self.waiting and not self._pump_due:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        now = time.monotonic()
        for pool in list(self._pools.values()):
            if pool.length_class is None and len(pool.queue) and self._gateway.scheduler.classed(pool.model):
                self._part(pool, now)
        waiting = [pool for pool in self._pools.values() if len(pool.queue)]
        while waiting:  # one a pool in turn: pools may share endpoints
            waiting = [pool for pool in waiting if self._release_one(pool, now)]
        self._recount()

    def _part(self, pool: Pool, now: float) -> None:
        """Some endpoints take one length class alone by now: what waits goes to the queues of its classes."""
        for exchange in pool.queue.drain():
            self._enqueue(self._pool(exchange), exchange, now)

    def _release_one(self, pool: Pool, now: float) -> bool:
        """Dispatch the pool's next request if there is room; False when there is none, or nothing waits."""
        exchange = pool.queue.pop() if self.has_room(pool) else None
        if exchange is None:
            return False
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
        """Requests waiting for capacity, held ones among them, by model; every known model is named."""
        gateway = self._gateway
        parents = gateway.fleet.parents
        found = {gateway.lora.parent(name) or parents.get(name, name): 0 for name in gateway.fleet.seen_models}
        for pool in self._pools.values():
            base = parents.get(pool.model, pool.model)
            found[base] = found.get(base, 0) + len(pool.queue)
        for model, held in self.held().items():
            found[model] = found.get(model, 0) + held
        return found

    def held(self) -> dict[str, int]:
        """Requests held now, by model."""
        holding = self._gateway.holding
        return {} if holding is None else holding.lengths()

    def document(self) -> list[dict[str, Any]]:
        """`/admin/queue`: a row a pool."""
        return [
            {
                "pool": (base := self._gateway.fleet.parents.get(pool.model, pool.model)),
                "adapter": pool.model if pool.model != base else None,
                "length_class": pool.length_class,
                "requests": len(pool.queue),
                "prompt_tokens": math.ceil(pool.queue.waiting_cost),
                "drain_tokens_per_s": round(pool.drain.rate, 1),
            }
            for pool in sorted(self._pools.values(), key=lambda pool: (pool.model, pool.length_class or ""))
        ]
