"""Prompts held back while they would make answers in flight too slow, for a share of their own TTFT limit at most."""

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from tonnage_core.scheduling.hold import HeldPrompts, HoldRule, breaks_answers

if TYPE_CHECKING:
    from tonnage_core.scheduling import Decision, Profile, SchedulingRequest
    from tonnage_router.exchange import Exchange
    from tonnage_router.gateway import Gateway
    from tonnage_router.settings import RouterSettings

REST_S: Final = 0.0005
"""After answers have ended, for each prompt that was chosen for anew by them: a choice takes up to 0.1 ms, so that all
of them together take a fifth of the CPU at most."""


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
        self._longest_s = settings.queue_ttl_s
        self._held: HeldPrompts[Exchange] = HeldPrompts()
        self._waits = False
        """Whether anything is held: asked at the end of each answer."""
        self._freed: set[int] = set()
        self._rests_until = 0.0
        """When ended answers are looked at again, by the event loop's clock."""

    def holds(self, exchange: "Exchange", request: "SchedulingRequest", decision: "Decision") -> bool:
        """Whether the request waits on; it is dispatched again in time. One that has failed somewhere does not wait,
        nor does any while tenants contend: one's flood of answers is not to delay another's prompts."""
        held = (
            breaks_answers(request, decision.chosen)
            and exchange.failures is None
            and not self._gateway.admission.contended(exchange.facts.pool)
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
        if self._held.full or waited_s >= exchange.incoming.may_wait_s(self._longest_s):
            return False
        pace = self._gateway.fleet.by_slot[chosen.slot].pace.tokens_per_s
        return rule.has_time(exchange.prompt_tokens, chosen, waited_s, pace, decision.matched_tokens)

    def _rule_of(self, exchange: "Exchange") -> HoldRule:
        return self._rules.get(exchange.facts.base, self._rule)

    def _hold(self, exchange: "Exchange", decision: "Decision") -> None:
        if not exchange.held_at:
            exchange.held_at, exchange.admission = time.perf_counter(), None
            if exchange.trace is not None:
                exchange.trace.held()
        limit_s = self._rule_of(exchange).slo.ttft_limit_ms(exchange.prompt_tokens) / 1e3
        self._waits = True
        self._held.add(exchange, decision.chosen.slot, exchange.started + limit_s)

    def let_go(self, exchange: "Exchange") -> None:
        """A held request goes out, takes its turn in the queue, or has ended: it waits no more."""
        exchange.held_s += time.perf_counter() - exchange.held_at
        exchange.held_at = 0.0

    def ended(self, exchange: "Exchange") -> None:
        """A request has ended, and with it an answer where it was sent."""
        if exchange.held_at:
            self.let_go(exchange)
        if exchange.held_s:
            self._gateway.metrics.prompt_held(exchange.facts.base, exchange.held_s)
        if self._waits and exchange.endpoint is not None:
            self._answer_ended(exchange.endpoint.candidate.slot)

    def _answer_ended(self, slot: int) -> None:
        """Look at who waits for an answer of that endpoint once this turn of the event loop is over."""
        if self._held.waits_for(slot):
            if not self._freed:
                asyncio.get_running_loop().call_at(self._rests_until, self._again)
            self._freed.add(slot)

    def sweep(self) -> None:
        """Choose anew for everything that is held."""
        if self._waits:
            self._choose_anew(self._held.take())

    def _again(self) -> None:
        freed, self._freed = self._freed, set()
        taken = self._held.take(freed)
        self._rests_until = asyncio.get_running_loop().time() + REST_S * len(taken)
        self._choose_anew(taken)

    def _choose_anew(self, taken: "list[Exchange]") -> None:
        self._waits = len(self._held) > 0
        for exchange in taken:
            if not exchange.ended:
                self._gateway.admission.resume(exchange)

    def __len__(self) -> int:
        return len(self._held)

    def lengths(self) -> dict[str, int]:
        """Requests held now, by pool."""
        return Counter(exchange.facts.base for exchange in self._held if not exchange.ended)
