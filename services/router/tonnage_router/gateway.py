"""The router's centre: what may come in, where it goes, and what is known of the fleet. One event loop, no awaits."""

import asyncio
import random
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Literal

from tonnage_core.flow_control.breaker import Breaker
from tonnage_core.flow_control.retry_budget import RetryBudget
from tonnage_core.flow_control.tenants import Grant, TenantAccount
from tonnage_core.prefix_index.token_estimate import BytesPerToken
from tonnage_core.scheduling import (
    Candidate,
    Decision,
    Reservation,
    Scheduler,
    SchedulingRequest,
)
from tonnage_router.access_log import AccessLog
from tonnage_router.adapters.tenant_file import read_tenants
from tonnage_router.admission import Admission
from tonnage_router.body import shapes
from tonnage_router.decisions import DecisionRecord
from tonnage_router.disaggregation import Disaggregation
from tonnage_router.errors import BadBodyError
from tonnage_router.exchange import Exchange
from tonnage_router.fleet import Endpoint, Fleet
from tonnage_router.holding import Holding, holds_prompts
from tonnage_router.limits import Limits
from tonnage_router.lora import LoraLoader
from tonnage_router.metrics import MAX_REQUEST_KEYS, RouterMetrics
from tonnage_router.models import ModelList
from tonnage_router.objectives import Objectives
from tonnage_router.profiles import profile_of
from tonnage_router.prompt_keys import PromptKeys
from tonnage_router.ranks import by_rank
from tonnage_router.rewriter import Rewriter
from tonnage_router.settings import EndpointSpec, RouterSettings
from tonnage_router.tenants import OUTPUT_TOKENS, Tenants, admitted
from tonnage_router.wire.answers import answer, error_object
from tonnage_router.wire.incoming import Incoming

if TYPE_CHECKING:
    from tonnage_router.body.usage import Usage
    from tonnage_router.prober import Prober
    from tonnage_router.sharing import Sharing
    from tonnage_router.sweeper import Sweeper
    from tonnage_router.tracing import Tracer
    from tonnage_router.wire.client import ClientConnection

MODELS: Final = b"/v1/models"
HEALTH: Final = b"/health"


class Gateway:
    """State shared by all connections of one process."""

    def __init__(self, settings: RouterSettings, metrics: RouterMetrics, access_log: AccessLog | None = None) -> None:
        self.settings = settings
        self.limits = Limits(settings)
        self.metrics = metrics
        metrics.attach(self)
        self.profile = profile_of(settings)
        self.scheduler = Scheduler(self.profile, random.Random(settings.seed))
        self.fleet = Fleet(settings, self.scheduler)
        self.models = ModelList(self.fleet, settings.adapters, settings.scale_from_zero)
        self.estimate = BytesPerToken()
        self.objectives = Objectives(settings)
        self.retry_budget = RetryBudget(settings.retry_budget)
        self.tenants = Tenants()
        if settings.tenants_file is not None:
            self.tenants.load(*read_tenants(settings.tenants_file, settings.limit_shares))
        self.rewriter = Rewriter(keys_are_tenants=settings.tenants_file is not None)
        self.admission = Admission(self)
        self.holding = Holding(self) if holds_prompts(settings, self.profile) else None
        self.lora = LoraLoader(settings.adapters, settings.adapter_load_timeout_s, metrics.adapter_loads)
        self.fleet.seen_models.update(self.lora.specs, settings.scale_from_zero)
        self.access_log = access_log or AccessLog("off")
        self.decisions: deque[DecisionRecord] = deque(maxlen=settings.decisions_kept or None)
        self._number = 0
        self.clients: set[ClientConnection] = set()
        self.active: set[Exchange] = set()
        self.buffered = 0
        self.sharing: Sharing | None = None
        self.disaggregation = Disaggregation(self) if settings.disaggregation else None
        self.tracer = self._traced() if settings.spans_to is not None else None
        self.draining = False
        self.drained = asyncio.Event()
        """Set when the last request ends while draining."""
        self.prober: Prober | None = None
        """Told of endpoints whose health traffic has put in doubt."""
        self.sweeper: Sweeper | None = None
        """Told of clients that come."""
        self.prompts = PromptKeys(self)
        for spec in by_rank(settings.endpoints):
            self.add_endpoint(spec)

    def _traced(self) -> "Tracer":
        from tonnage_router.tracing import Tracer

        return Tracer(self.settings, self.metrics, self.profile.name)

    def add_endpoint(self, spec: EndpointSpec) -> Endpoint:
        """Take an endpoint in; the prober decides when it gets requests."""
        return self.fleet.add(spec, Breaker())

    # --- requests in --------------------------------------------------------------------------------------------------

    def check_head(self, incoming: Incoming) -> None:
        """Set `incoming.error` when the head alone says that the request is not for a route, or too large."""
        target = incoming.target
        path = incoming.path = target if target.find(b"?") < 0 else target.partition(b"?")[0]
        if path in shapes.PROMPTS:
            wanted = b"POST"
        elif path in (MODELS, HEALTH):
            wanted = b"GET"
        else:
            incoming.error = (404, f"no such path: {path[:200].decode('latin-1')}")
            return
        if incoming.method != wanted:
            incoming.error = (405, f"use {wanted.decode()} for {path.decode()}")
        elif incoming.length is not None and incoming.length > self.limits.body_bytes:
            incoming.error = (413, f"the body is larger than {self.limits.body_bytes} bytes")
        elif self.tenants.enabled and path != HEALTH and (incoming.account or self._identified(incoming)) is None:
            incoming.error = (401, "send a valid key as `Authorization: Bearer <key>` or `x-api-key: <key>`")
        elif path == HEALTH and (incoming.length or incoming.transfer is not None):
            incoming.error = (413, "send no body to /health")  # it would take room from requests that show a key
        elif incoming.encoding not in (None, b"identity"):
            incoming.error = (415, "send the body without Content-Encoding")
        elif incoming.length is not None and self.buffered + incoming.length > self.limits.buffered_bytes:
            incoming.error = (503, "too many request bytes are buffered; try again later")

    def _identified(self, incoming: Incoming) -> TenantAccount | None:
        incoming.account = self.tenants.identify(incoming.authorization)
        return incoming.account

    def handle(self, client: "ClientConnection", incoming: Incoming) -> None:
        """A whole request: answer it here, or start an exchange."""
        if incoming.error is not None:
            self._local(client, incoming, *incoming.error)
        elif incoming.path == MODELS:
            self._reply(client, incoming, 200, self.models.document())
        elif incoming.path == HEALTH:
            reason = self.not_ready()
            self._reply(client, incoming, 503 if reason else 200, error_object(503, reason) if reason else b"")
        else:
            self._route(client, incoming)

    def _route(self, client: "ClientConnection", incoming: Incoming) -> None:
        try:
            facts = shapes.facts(shapes.parse(incoming.body), shapes.PROMPTS[incoming.path])
        except BadBodyError as error:
            self._local(client, incoming, 400, str(error), param=error.param)
            return
        if facts.model is None:
            facts.model = self.models.only()
            if facts.model is None:
                self._local(client, incoming, 400, "model is required: several are served", param="model")
                return
        if facts.model not in self.fleet.seen_models:
            message = f"The model `{facts.model[:200]}` does not exist."
            self._local(client, incoming, 404, message, code="model_not_found", param="model")
            return
        facts.pool = self.lora.parent(facts.model) or facts.model
        facts.base = self.fleet.parents.get(facts.pool, facts.pool)
        exchange = Exchange(self, client, incoming, facts)
        exchange.register()
        if self.tracer is not None:
            self.tracer.begin(exchange)
        try:
            self.rewriter.prepare(exchange)
        except BadBodyError as error:
            exchange.fail(400, str(error), "invalid_body")
            return
        self.prompts.measure(exchange, self._measured)

    def _measured(self, exchange: Exchange) -> None:
        """The prompt's tokens are counted and its blocks hashed: let the request in, or refuse it."""
        if admitted(exchange):
            self.retry_budget.request()
            self.admission.submit(exchange)

    def _local(
        self,
        client: "ClientConnection",
        incoming: Incoming,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        self.refused(incoming, status, message)
        self._reply(client, incoming, status, error_object(status, message, code, param))

    def _reply(self, client: "ClientConnection", incoming: Incoming, status: int, body: bytes) -> None:
        self.unbuffer(len(incoming.body))
        keep = incoming.keep_alive and not self.draining and not client.closing
        extra = b"" if status != 405 else b"allow: POST\r\n" if incoming.path in shapes.PROMPTS else b"allow: GET\r\n"
        client.transport.write(answer(status, body, close=not keep, extra=extra, bodiless=incoming.method == b"HEAD"))
        client.next_request(keep)

    def unbuffer(self, size: int) -> None:
        """Request bytes are no longer held."""
        self.buffered -= size

    def refused(self, incoming: Incoming | None, status: int, why: str) -> None:
        """A request, as far as it was read, ended before routing."""
        self.metrics.refused[status] = self.metrics.refused.get(status, 0) + 1
        self.access_log.refused(incoming, status, why)
        if self.tracer is not None:
            self.tracer.refused(incoming, status, why)

    # --- choice -------------------------------------------------------------------------------------------------------

    def choose(self, exchange: Exchange) -> tuple[Decision, Reservation, Endpoint] | Literal["held"] | None:
        """Decide, reserve and count in one step; None when no endpoint is eligible. A held request comes back."""
        begun = time.perf_counter()
        facts = exchange.facts
        request = SchedulingRequest(
            facts.pool,
            exchange.prompt_tokens,
            (facts.max_tokens or OUTPUT_TOKENS) * facts.samples,
            adapter=facts.model if facts.model != facts.pool else None,
            session=exchange.incoming.session or (facts.session.encode("utf-8", "replace") if facts.session else None),
            prefix_key=exchange.chain[0] if exchange.chain else None,
            room=self.admission.room_wanted(facts.pool),
        )
        avoided = self.disaggregation.avoided(exchange) if self.disaggregation is not None else exchange.tried
        decision = self.scheduler.decide(request, exchange.chain, exchange.tokens_per_block, avoided, exchange.exact)
        if decision is None:
            return None
        if self.holding is not None and self.holding.holds(exchange, request, decision):
            return "held"
        if self.admission.slo.enabled:
            self.admission.slo.chosen(exchange)
        reservation = self.scheduler.take(request, decision, exchange.chain, exchange.exact)
        endpoint = self.fleet.by_slot[decision.chosen.slot]
        self.sending(endpoint, exchange)
        self._count_decision(exchange, decision, time.perf_counter() - begun)
        return decision, reservation, endpoint

    def sending(self, endpoint: Endpoint, by: object) -> None:
        """A request goes to the endpoint; to a half-open one no other does until it is known how `by` ended."""
        endpoint.requests += 1
        if not endpoint.breaker.closed:
            endpoint.breaker.sent(time.monotonic(), by)
            self.refresh(endpoint)

    def _count_decision(self, exchange: Exchange, decision: Decision, seconds: float) -> None:
        metrics = self.metrics
        metrics.count(metrics.decisions, (self.profile.name, decision.reason))
        metrics.predicted_prompt_tokens += exchange.prompt_tokens
        metrics.predicted_hit_tokens += decision.matched_tokens
        metrics.choice.observe(seconds)
        if self.limits.decisions_kept:
            self._number += 1
            decision.number = self._number
            self.decisions.append(DecisionRecord(exchange, decision, time.time(), self._number, self.profile))

    # --- what traffic says of endpoints -------------------------------------------------------------------------------

    def endpoint_answered(self, exchange: Exchange) -> None:
        """The first byte of an answer that is not a fault: 4xx is success."""
        assert exchange.endpoint is not None
        self.prefilled(exchange)
        self.endpoint_works(exchange.endpoint)

    def endpoint_works(self, endpoint: Endpoint) -> None:
        """It answered, and not with a fault."""
        endpoint.candidate.pressure = 0.0
        if endpoint.breaker.troubled:
            endpoint.breaker.success()
            self.refresh(endpoint)

    def prefilled(self, exchange: Exchange) -> None:
        """The prompt is computed, as a stream's first byte shows or the endpoint's pace suggests."""
        endpoint, reservation = exchange.endpoint, exchange.reservation
        assert endpoint is not None and reservation is not None
        if reservation.decoding:
            return
        if exchange.facts.stream:
            endpoint.pace.learn(exchange.ahead_tokens, exchange.waited_s)
        reservation.first_token()
        self.admission.room_freed()

    def endpoint_failed(self, endpoint: Endpoint, kind: str, by: object) -> None:
        """The attempt `by` failed: backpressure, adapter, status, connect, closed, cut, timeout or protocol."""
        self.metrics.count(self.metrics.endpoint_failures, (endpoint.id, kind))
        endpoint.failures += 1
        if kind == "backpressure":
            endpoint.candidate.pressure = 1.0
        if kind in ("backpressure", "adapter"):
            endpoint.breaker.neutral(by)
        else:
            endpoint.breaker.fault(time.monotonic())
            if self.prober is not None:
                self.prober.look_soon(endpoint.id)
            if kind == "connect":
                endpoint.probe_ok = False
                endpoint.probe_problem = "connection refused or timed out"
        self.refresh(endpoint)

    def refresh(self, endpoint: Endpoint) -> None:
        """Recompute whether the endpoint may be chosen."""
        self.fleet.set_healthy(endpoint, endpoint.probe_ok and endpoint.breaker.allows(time.monotonic()))

    def endpoint_down(self, endpoint: Endpoint) -> None:
        """Probes say the engine is gone: requests it has not begun to answer move on, unless it still sends bytes."""
        here = [exchange for exchange in self.active if exchange.endpoint is endpoint and exchange.upstream is not None]
        if any(x.upstream is not None and x.upstream.answered and not x.upstream.quiet_ticks for x in here):
            return
        for exchange in here:
            if not exchange.answering and exchange.upstream is not None:
                exchange.upstream.timed_out()

    def eligible(self, pool: str) -> list[Candidate]:
        """Endpoints that may take a pool's requests."""
        return self.scheduler.eligible(pool)

    def alone(self, endpoint: Endpoint, pool: str) -> bool:
        """Whether nobody else may take the pool's requests: to give up the endpoint would help none of them."""
        return all(candidate is endpoint.candidate for candidate in self.eligible(pool))

    def may_retry(self, exchange: Exchange) -> bool:
        """Whether another endpoint may be tried; spends from the budget when so."""
        assert exchange.endpoint is not None
        tried = {*exchange.tried, exchange.endpoint.id}
        if len(tried) > self.settings.retries or all(c.id in tried for c in self.eligible(exchange.facts.pool)):
            return False
        if not self.retry_budget.take():
            return False
        retries = self.metrics.retries
        retries["elsewhere"] = retries.get("elsewhere", 0) + 1
        return True

    # --- ends ---------------------------------------------------------------------------------------------------------

    def ended(self, exchange: Exchange, outcome: str) -> None:
        """Count a finished exchange, learn from its usage, log it."""
        metrics = self.metrics
        endpoint = exchange.endpoint
        key = (metrics.models.label(exchange.facts.model or ""), endpoint.id if endpoint else "", str(exchange.status))
        metrics.count(metrics.requests, key, most=MAX_REQUEST_KEYS)
        metrics.outcomes[outcome] = metrics.outcomes.get(outcome, 0) + 1
        duration = time.perf_counter() - exchange.started
        pool = exchange.facts.base
        metrics.observe_request(pool, duration, exchange.first_byte_s)
        verdict = self.objectives.verdict(exchange, outcome, pool, duration)
        if verdict is not None:
            metrics.count(metrics.slo_requests, (metrics.pools.label(pool), verdict))
        if self.disaggregation is not None:
            self.disaggregation.forget(exchange)
        if exchange.usage is not None:
            self._learn(exchange, exchange.usage)
        if exchange.grant is not None:
            self._settle(exchange, exchange.grant)
        self.admission.room_freed()
        if self.holding is not None:
            self.holding.ended(exchange)
        if endpoint is not None:
            endpoint.breaker.neutral(exchange)  # where its end is a verdict, that was given before
        self.access_log.write(exchange, outcome, duration)
        if self.tracer is not None:
            self.tracer.ended(exchange, outcome, duration)
        if self.draining and not self.active:
            self.drained.set()

    def _settle(self, exchange: Exchange, grant: Grant) -> None:
        """Charge the tenant what the engine reported; an answer cut short, its prompt and the events that passed."""
        usage = exchange.usage
        if usage is not None:
            used = usage.prompt_tokens + usage.completion_tokens
        elif exchange.answering and exchange.tap is not None:
            used = exchange.prompt_tokens + exchange.tap.events
        else:
            used = 0
        grant.settle(used, time.monotonic())
        name = self.metrics.tenants.label(grant.account.spec.name)
        self.metrics.count(self.metrics.tenant_tokens, (name,), used)
        self.metrics.count(self.metrics.tenant_requests, (name,))

    def _learn(self, exchange: Exchange, usage: "Usage") -> None:
        self.metrics.count_tokens(
            exchange.facts.base, usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens or 0
        )
        self.prompts.answered(exchange, usage.prompt_tokens)
        if exchange.facts.tokens is None and exchange.facts.model is not None:
            self.estimate.learn(exchange.facts.model, len(exchange.facts.prompt), usage.prompt_tokens)

    def not_ready(self) -> str | None:
        """Why the router cannot take requests, or None."""
        if self.draining:
            return "draining"
        return None if self.settings.scale_from_zero else self.fleet.idle_because()
