"""Prefill and decode apart: the prompt is computed on a prefill endpoint first where the planner's rule says it pays.

A request whose decode endpoint is chosen is held back for the first call; its answer's parameters go into the second.
Whatever fails about the first call, the request goes on to its decode endpoint without them, which then computes the
prompt itself: the client sees no error.
"""

import asyncio
import logging
import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from tonnage_core.errors import TonnageError
from tonnage_core.scheduling import Decision, Reservation, SchedulingRequest
from tonnage_core.scheduling.prefill import Lending, Link, choose_prefill, judge
from tonnage_router.adapters.http_call import call
from tonnage_router.body import prefill as bodies
from tonnage_router.errors import BadBodyError, ProbeError

if TYPE_CHECKING:
    from tonnage_router.exchange import Exchange
    from tonnage_router.fleet import Endpoint
    from tonnage_router.gateway import Gateway

log = logging.getLogger(__name__)
PATIENCE = 3.0
"""A first call may take this multiple of its predicted time, and `SLACK_S` more."""
SLACK_S = 2.0
MUTE_S = 60.0
"""An endpoint that answered without parameters is not asked again for so long."""


class NoAdapterError(TonnageError):
    """A prefill endpoint could not load the request's adapter."""


class NoParamsError(TonnageError):
    """A prefill engine answered without `kv_transfer_params`: it has no KV connector, or not that role."""


@dataclass(slots=True, eq=False)
class _Held:
    """A request's first call: for which decode endpoint, and what came of it."""

    endpoint: "Endpoint"
    task: asyncio.Task[None] | None = None
    params: bytes | None = None


class Disaggregation:
    """First calls by request."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._rng = random.Random(gateway.settings.seed + 1)
        self._links = {
            spec.model: Link(spec.kv_bytes_per_token, spec.link_gbps, spec.latency_s, spec.hop_s, spec.overlap)
            for spec in gateway.settings.disaggregation
        }
        self._lending = {model: Lending() for model in self._links}
        self._held: dict[Exchange, _Held] = {}
        self._mute: dict[str, float] = {}

    def avoided(self, exchange: "Exchange") -> Collection[str]:
        """Ids of the endpoints that the request is not to go to: those tried, and those busy with others' prompts."""
        lending = self._lending.get(exchange.facts.pool)
        if lending is None:
            return exchange.tried
        candidates = self._gateway.eligible(exchange.facts.pool)
        kept = lending.kept_free(candidates, exchange.tried, exchange.prompt_tokens, self._still_mute())
        return {*exchange.tried, *kept} if kept else exchange.tried

    def holds(self, exchange: "Exchange", endpoint: "Endpoint") -> bool:
        """Whether the request waits for a first call, and hears `resume` after it. Asked again then, it says no."""
        link = self._links.get(exchange.facts.pool)
        held = self._held.get(exchange)
        if link is None or (held is not None and held.endpoint is endpoint):
            return False
        lending = self._lending[exchange.facts.pool]
        if endpoint.candidate.role != "decode":
            lending.note(exchange.prompt_tokens, apart=False)
            return False
        self._held[exchange] = _Held(endpoint)
        chosen = self._chosen(exchange, link, lending)
        if chosen is None:
            return False
        prefill = self._gateway.fleet.by_slot[chosen.chosen.slot]
        held = self._held[exchange]
        self._gateway.sending(prefill, held)
        running = self._first_call(exchange, held, chosen, prefill)
        held.task = asyncio.get_running_loop().create_task(running)
        held.task.add_done_callback(_told)
        held.task.add_done_callback(lambda _: prefill.breaker.neutral(held))
        return True

    def params(self, exchange: "Exchange", endpoint: "Endpoint") -> bytes | None:
        """What the second call says of the prompt's KV."""
        held = self._held.get(exchange)
        return held.params if held is not None and held.endpoint is endpoint else None

    def forget(self, exchange: "Exchange") -> None:
        """The request ended: a first call in progress is dropped, which makes the engine stop."""
        held = self._held.pop(exchange, None)
        if held is not None and held.task is not None:
            held.task.cancel()

    def _chosen(self, exchange: "Exchange", link: Link, lending: Lending) -> Decision | None:
        """The prefill endpoint, where one suits and the rule says that it pays."""
        decision, reservation = exchange.decision, exchange.reservation
        assert decision is not None and reservation is not None
        facts = exchange.facts
        adapter = facts.model if facts.model != facts.pool else None
        request = SchedulingRequest(facts.pool, exchange.prompt_tokens, adapter=adapter)
        scheduler = self._gateway.scheduler
        mute = self._still_mute()
        found = choose_prefill(scheduler, request, exchange.chain, exchange.tokens_per_block, self._rng, mute)
        if found is None:
            self._note(exchange, "no_endpoint", "no prefill endpoint is eligible")
            return None
        pace = self._gateway.fleet.by_slot[found.chosen.slot].pace.tokens_per_s
        verdict = judge(decision, reservation, found, exchange.prompt_tokens, link, pace)
        suits = verdict.pays_unshared and _suits(exchange)
        lending.note(exchange.prompt_tokens, apart=suits)
        if not verdict.pays:
            self._note(exchange, "does_not_pay", verdict.reason)
            return None
        if not suits:
            self._note(exchange, "unsuitable", "a batch, several samples, or logits of the prompt are asked for")
            return None
        self._note(exchange, "pays", f"{verdict.reason}; prefill on {found.chosen.id}")
        return found

    def _still_mute(self) -> Collection[str]:
        if self._mute:
            now = asyncio.get_running_loop().time()
            self._mute = {name: until for name, until in self._mute.items() if until > now}
        return self._mute

    def _note(self, exchange: "Exchange", outcome: str, reason: str) -> None:
        self._count(outcome)
        decisions = self._gateway.decisions
        if decisions:
            decisions[-1].disaggregation = f"{outcome}: {reason}"

    def _count(self, outcome: str) -> None:
        counts = self._gateway.metrics.handovers
        counts[outcome] = counts.get(outcome, 0) + 1

    async def _first_call(self, exchange: "Exchange", held: _Held, chosen: Decision, endpoint: "Endpoint") -> None:
        gateway = self._gateway
        uncached = max(1, exchange.prompt_tokens - chosen.matched_tokens)
        own = Reservation.on(chosen.chosen, uncached, exchange.prompt_tokens)
        moved = exchange.reservation
        assert moved is not None
        moved.relieve()
        if exchange.chain and gateway.fleet.by_slot.get(chosen.chosen.slot) is endpoint:
            gateway.scheduler.index.insert(exchange.chain, chosen.chosen.slot)
        model, why = str(exchange.facts.model), "failed"
        endpoint.residency.begin_use(model)
        if exchange.trace is not None:
            exchange.trace.prefilling(endpoint)
        try:
            if not await gateway.lora.ensure(model, endpoint):
                raise NoAdapterError(f"{endpoint.id} could not load adapter {model}")
            ahead, begun = chosen.chosen.prefill_tokens, asyncio.get_running_loop().time()
            held.params = await self._prefilled(exchange, endpoint, ahead)
            endpoint.pace.learn(ahead, asyncio.get_running_loop().time() - begun)
            gateway.endpoint_works(endpoint)
            self._count("done")
        except (ProbeError, NoAdapterError, NoParamsError) as error:
            why = self._failed(endpoint, error, held)
        finally:
            endpoint.residency.end_use(model)
            if held.params is None:
                moved.burden()
                if exchange.trace is not None:
                    exchange.trace.failed(why)
            own.release()
            # Here, so that a request never waits for a call that is over; one that was cancelled has ended.
            if not exchange.ended:
                gateway.admission.room_freed()
                exchange.resume()

    async def _prefilled(self, exchange: "Exchange", endpoint: "Endpoint", ahead_tokens: int) -> bytes:
        gateway, spec = self._gateway, endpoint.spec
        served = orjson.dumps(spec.served_model) if spec.served_model else None
        answer = await call(
            endpoint.host,
            endpoint.port,
            exchange.incoming.path.decode(),
            timeout_s=SLACK_S + PATIENCE * ahead_tokens / endpoint.pace.tokens_per_s,
            body=bodies.for_prefill(exchange.body, served),
            lines=gateway.rewriter.plain_lines(exchange, endpoint),
        )
        if answer.status != 200:
            raise ProbeError(f"prefill answered {answer.status}", answer.status)
        params = bodies.params_of(answer.body)
        if params is None:
            raise NoParamsError(f"{endpoint.id} answered without kv_transfer_params: start it with a KV connector")
        return params

    def _failed(self, endpoint: "Endpoint", error: TonnageError, held: _Held) -> str:
        """4xx is the client's matter and a missing parameter the operator's; the rest counts against the endpoint.
        Returns the status or the kind of failure."""
        if isinstance(error, NoParamsError):
            self._mute[endpoint.candidate.id] = asyncio.get_running_loop().time() + MUTE_S
            self._gateway.endpoint_works(endpoint)
        if isinstance(error, NoAdapterError | NoParamsError):
            missing = "no_params" if isinstance(error, NoParamsError) else "no_adapter"
            self._count(missing)
            return missing
        status = error.status if isinstance(error, ProbeError) else None
        if status is not None and status < 500 and status != 429:
            self._gateway.endpoint_works(endpoint)
            self._count("refused")
            return str(status)
        self._count("failed")
        kind = "connect" if status is None else "backpressure" if status in (429, 503) else "status"
        self._gateway.endpoint_failed(endpoint, kind, held)
        return kind if status is None else str(status)


def _told(task: asyncio.Task[None]) -> None:
    """A fault of the router's own is logged; the request has gone on."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("first call", exc_info=error)


def _suits(exchange: "Exchange") -> bool:
    try:
        return bodies.suits(exchange.body, exchange.incoming.path)
    except BadBodyError:
        return False
