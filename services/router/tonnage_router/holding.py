"""Prompts held back while they would make answers in flight too slow, for a share of their own TTFT limit at most."""

import asyncio
import time
from typing import TYPE_CHECKING

from tonnage_core.scheduling.hold import HeldPrompts, HoldRule, breaks_answers

if TYPE_CHECKING:
    from tonnage_core.scheduling import Decision, Profile, SchedulingRequest
    from tonnage_router.exchange import Exchange
    from tonnage_router.gateway import Gateway
    from tonnage_router.settings import RouterSettings


def holds_prompts(settings: "RouterSettings", profile: "Profile") -> bool:
    """Whether prompts are held at all: not where nobody counts answers, nor where prompts are computed elsewhere."""
    return settings.hold_share > 0 and profile.spares_answers and not settings.disaggregation


class Holding:
    """The held requests of all pools. They are among the active ones and end like any other: here they are only
    remembered, until they are chosen for again."""

    def __init__(self, gateway: "Gateway") -> None:
        settings = gateway.settings
        self._gateway = gateway
        self._rule = HoldRule(settings.slo.limits, settings.hold_share)
        self._rules = {name: HoldRule(slo.limits, settings.hold_share) for name, slo in settings.slos.items()}
        self._held: HeldPrompts[Exchange] = HeldPrompts()
        self._freed: set[int] = set()

    def holds(self, exchange: "Exchange", request: "SchedulingRequest", decision: "Decision") -> bool:
        """Whether the request waits on; it is dispatched again in time. One that has failed somewhere does not wait."""
        held = (
            breaks_answers(request, decision.chosen)
            and exchange.failures is None
            and self._has_time(exchange, decision)
        )
        if held:
            self._hold(exchange, decision)
        elif exchange.held_at:
            self.let_go(exchange)
        return held

    def _has_time(self, exchange: "Exchange", decision: "Decision") -> bool:
        rule, chosen = self._rule_of(exchange), decision.chosen
        waited_s = time.perf_counter() - exchange.started
        limit_s = rule.slo.ttft_limit_ms(exchange.prompt_tokens) / 1e3
        if self._held.full or waited_s >= exchange.incoming.may_wait_s(limit_s):
            return False
        pace = self._gateway.fleet.by_slot[chosen.slot].pace.tokens_per_s
        return rule.has_time(exchange.prompt_tokens, chosen, waited_s, pace)

    def _rule_of(self, exchange: "Exchange") -> HoldRule:
        return self._rules.get(exchange.facts.pool, self._rule)

    def _hold(self, exchange: "Exchange", decision: "Decision") -> None:
        if not exchange.held_at:
            exchange.held_at = time.perf_counter()
            if exchange.trace is not None:
                exchange.trace.held()
        limit_s = self._rule_of(exchange).slo.ttft_limit_ms(exchange.prompt_tokens) / 1e3
        self._held.add(exchange, decision.chosen.slot, exchange.started + limit_s)

    def let_go(self, exchange: "Exchange") -> None:
        """A held request goes out, or has ended: it waits no more."""
        exchange.held_s = time.perf_counter() - exchange.held_at
        exchange.held_at = 0.0
        self._gateway.metrics.prompt_held(exchange.facts.pool, exchange.held_s)

    def answer_ended(self, slot: int) -> None:
        """An answer of that endpoint has ended: look at who waits for one once this turn of the event loop is over."""
        if self._held.waits_for(slot):
            if not self._freed:
                asyncio.get_running_loop().call_soon(self._again)
            self._freed.add(slot)

    def sweep(self) -> None:
        """Choose anew for everything that is held."""
        for exchange in self._held.take():
            self._dispatch(exchange)

    def _again(self) -> None:
        freed, self._freed = self._freed, set()
        for exchange in self._held.take(freed):
            self._dispatch(exchange)

    def _dispatch(self, exchange: "Exchange") -> None:
        if exchange.ended:
            self.let_go(exchange)
        else:
            exchange.dispatch()

    def __len__(self) -> int:
        return len(self._held)
