"""A fleet in one process: engines, a router, and a trace of arrivals, on simulated time.

Routing is `tonnage_core.scheduling`, the live router's own code, and sees what a live router would see: its own
reservations, released when first and last tokens come back, its own prefix index at the granularity of trace blocks,
and gauges as old as the last scrape.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from tonnage_core.engine.adapter_mix import AdapterMix
from tonnage_core.engine.batch import StepClock
from tonnage_core.engine.engine import Engine
from tonnage_core.engine.errors import BadEngineConfigError, RequestTooLongError
from tonnage_core.engine.trace_keys import trace_chain, trace_keys
from tonnage_core.engine.types import EngineConfig, EngineCounters, EngineRequest, RequestTimeline
from tonnage_core.prefix_index.block_hash import seed_hash
from tonnage_core.prefix_index.index import ENTRY_BYTES
from tonnage_core.scheduling.hold import RETRY_S, HeldPrompts, HoldRule, breaks_answers
from tonnage_core.scheduling.pace import PrefillPace
from tonnage_core.scheduling.profile import Profile
from tonnage_core.scheduling.scheduler import Reservation, Scheduler
from tonnage_core.scheduling.types import Candidate, Decision, SchedulingRequest
from tonnage_core.slo import RequestRecord
from tonnage_core.traces import TraceRequest

if TYPE_CHECKING:
    from random import Random

WATCH_S = 0.025
"""Between looks at whether an answer has ended for which a prompt waits."""
TOO_LONG = "request_too_long"
"""Outcome of a request that no engine of the fleet can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """A fleet of equal engines behind one router.

    `rate_scale` 2 makes arrivals come twice as fast. `scrape_s` is how old the gauges that routing reads may be;
    `index_bytes` bounds the router's prefix index a replica, and so does the engine's own cache. The last
    `long_replicas` take the profile's long prompts and the others the rest; 0: any takes any. `adapters` says which
    adapter each request asks for; None: none. `hold` is by what prompts wait for answers; None: they do not.
    """

    replicas: int
    engine: EngineConfig
    profile: Profile
    model: str = ""
    seed: int = 0
    rate_scale: float = 1.0
    scrape_s: float = 1.0
    index_bytes: int = 8 << 20
    keep_gaps: bool = True
    long_replicas: int = 0
    adapters: AdapterMix | None = None
    hold: HoldRule | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.long_replicas < max(1, self.replicas):
            raise BadEngineConfigError(
                f"{self.long_replicas} of {self.replicas} replicas for long prompts; leave at least one for short ones"
            )
        if self.adapters is not None and not self.engine.adapter_slots:
            raise BadEngineConfigError("requests ask for adapters and the engines have no slots; set adapter_slots")


@dataclass(frozen=True, slots=True)
class FleetResult:
    """What came of a trace: a record a request in order of arrival, the engines' counters, a digest of all decisions.

    `duration_s` runs from the first arrival to the last token.
    """

    records: tuple[RequestRecord, ...]
    replicas: tuple[EngineCounters, ...]
    decisions_sha256: str
    duration_s: float

    @property
    def gpu_hours(self) -> float:
        """Replica hours: every replica is there from the first arrival to the last token."""
        return len(self.replicas) * self.duration_s / 3600

    @property
    def counters(self) -> EngineCounters:
        """The fleet's counters: the replicas' sums."""
        total = EngineCounters()
        for replica in self.replicas:
            for each in fields(replica):
                setattr(total, each.name, getattr(total, each.name) + getattr(replica, each.name))
        return total


@dataclass(slots=True, eq=False)
class _Flight:
    """A request on its way: where it went and what it holds there."""

    trace: TraceRequest
    arrival_s: float
    reservation: Reservation
    sent_s: float
    ahead_tokens: int


@dataclass(slots=True, eq=False)
class _Replica:
    """One engine, the router's view of it, and what the router has not seen yet."""

    engine: Engine
    candidate: Candidate
    pace: PrefillPace = field(default_factory=PrefillPace)
    started: deque[tuple[float, str]] = field(default_factory=deque)
    ended: deque[RequestTimeline] = field(default_factory=deque)

    def run_until(self, until: float) -> None:
        """Bring the engine up to `until`."""
        self.ended.extend(self.engine.run_until(until))
        self.started.extend(self.engine.first_tokens())


class Fleet:
    """Runs one trace. `rng` breaks the router's ties; equal seeds and traces give equal results.

    `step_time` is every replica's, or one for each: the router is not told how fast they are.
    """

    def __init__(self, config: FleetConfig, step_time: StepClock | Sequence[StepClock], rng: "Random") -> None:
        self._config = config
        self._router = Scheduler(config.profile, rng)
        clocks = step_time if isinstance(step_time, Sequence) else [step_time] * config.replicas
        self._replicas = [
            self._replica(slot, clock) for slot, clock in zip(range(config.replicas), clocks, strict=True)
        ]
        self._seeds: dict[str | None, bytes] = {}
        self._flights: dict[str, _Flight] = {}
        self._records: dict[int, RequestRecord] = {}
        self._digest = hashlib.sha256()
        self._scraped_s = float("-inf")
        self._swept_s = float("-inf")
        self._held: HeldPrompts[tuple[TraceRequest, float]] = HeldPrompts()
        self._freed: set[int] = set()
        """Slots where an answer has ended since held prompts were last looked at."""

    def _replica(self, slot: int, step_time: StepClock) -> _Replica:
        config = self._config
        engine = Engine(
            config.engine, step_time, model=config.model, seed=config.seed + slot, keep_gaps=config.keep_gaps
        )
        candidate = Candidate(
            f"replica-{slot}",
            slot,
            max_model_len=config.engine.max_model_len,
            length_class=_length_class(config, slot),
            adapter_slots=config.engine.adapter_slots or None,
        )
        self._router.add(candidate, config.index_bytes)
        return _Replica(engine, candidate)

    def run(self, requests: Iterable[TraceRequest]) -> FleetResult:
        """Serve the whole trace; arrivals must not go backwards."""
        now = 0.0
        for i, request in enumerate(requests):
            if not i:
                self._fit_index(request.block_tokens)
            arrival = request.arrival_s / self._config.rate_scale
            now = self._wait(now, arrival)
            self._catch_up(now)
            self._again(now)
            self._route(request, now, now)
        self._wait(now, float("inf"))
        self._catch_up(float("inf"))
        return self._result()

    def _fit_index(self, block_tokens: int) -> None:
        """Track no more blocks than an engine's cache holds, as the live router does."""
        engine = self._config.engine
        blocks = engine.num_blocks * engine.block_size // block_tokens
        for replica in self._replicas:
            self._router.index.add_slot(
                replica.candidate.slot, min(self._config.index_bytes, max(1, blocks) * ENTRY_BYTES)
            )

    def _wait(self, now: float, until: float) -> float:
        """Let time pass until `until`, choosing anew for what is held; without anything held, at once."""
        while len(self._held) and now + WATCH_S < until:
            now += WATCH_S
            self._catch_up(now)
            self._again(now)
        return until

    def _again(self, now: float) -> None:
        """Choose anew for what waits where an answer has ended, and every `RETRY_S` for everything."""
        freed, self._freed = self._freed, set()
        everything = now >= self._swept_s + RETRY_S
        if everything:
            self._swept_s = now
        for request, arrival in self._held.take(None if everything else freed):
            self._route(request, now, arrival)

    def _catch_up(self, now: float) -> None:
        for replica in self._replicas:
            replica.run_until(now)
        self._observe(now)
        if now - self._scraped_s >= self._config.scrape_s:
            self._scraped_s = now
            for replica in self._replicas:
                replica.candidate.kv_utilisation = replica.engine.kv.pool.usage
                replica.candidate.waiting = len(replica.engine.scheduler.waiting)
                if self._config.adapters is not None:
                    replica.candidate.adapters = set(replica.engine.adapters.resident)

    def _observe(self, now: float) -> None:
        """Let the router see the first and last tokens that had come out by `now`."""
        for replica in self._replicas:
            while replica.started and replica.started[0][0] <= now:
                at, name = replica.started.popleft()
                if name in self._flights:
                    flight = self._flights[name]
                    flight.reservation.first_token()
                    replica.pace.learn(flight.ahead_tokens, at - flight.sent_s)
            while replica.ended and replica.ended[0].finished_s <= now:
                self._land(replica.ended.popleft())

    def _land(self, timeline: RequestTimeline) -> None:
        flight = self._flights.pop(timeline.request_id)
        flight.reservation.release()
        self._freed.add(flight.reservation.candidate.slot)
        self._records[flight.trace.index] = RequestRecord(
            index=flight.trace.index,
            prompt_tokens=timeline.prompt_tokens,
            intended_s=flight.arrival_s,
            sent_s=flight.sent_s,
            first_s=timeline.first_token_s,
            last_s=timeline.last_token_s,
            gaps_s=timeline.gaps_s,
            output_tokens=timeline.output_tokens,
            cached_tokens=timeline.hit_tokens,
        )

    def _route(self, request: TraceRequest, now: float, arrival: float) -> None:
        adapter = None if self._config.adapters is None else self._config.adapters.of(request)
        chain = trace_chain(request, self._seed(adapter))
        whole = chain[: request.input_length // request.block_tokens]
        asked = SchedulingRequest(
            self._config.model,
            request.input_length,
            request.output_length,
            adapter=adapter,
            prefix_key=chain[0] if chain else None,
        )
        decision = self._router.decide(asked, whole, request.block_tokens)
        if decision is None:
            self._refuse(request, arrival)
        elif not self._holds(request, asked, decision, now, arrival):
            reservation = self._router.take(asked, decision, whole)
            self._send(request, _Flight(request, arrival, reservation, now, 0), decision, chain, adapter)

    def _holds(
        self, request: TraceRequest, asked: SchedulingRequest, decision: Decision, now: float, arrival: float
    ) -> bool:
        rule, slot = self._config.hold, decision.chosen.slot
        if rule is None or self._held.full or not breaks_answers(asked, decision.chosen):
            return False
        pace = self._replicas[slot].pace.tokens_per_s
        if not rule.has_time(request.input_length, decision.chosen, now - arrival, pace, decision.matched_tokens):
            return False
        self._held.add((request, arrival), slot, arrival + rule.slo.ttft_limit_ms(request.input_length) / 1e3)
        return True

    def _send(
        self, request: TraceRequest, flight: _Flight, decision: Decision, chain: list[bytes], adapter: str | None
    ) -> None:
        candidate = decision.chosen
        self._digest.update(b"%d %d %d\n" % (request.index, candidate.slot, decision.matched_tokens))
        try:
            self._replicas[candidate.slot].engine.submit(self._engine_request(request, chain, adapter), flight.sent_s)
        except RequestTooLongError:
            flight.reservation.release()
            self._refuse(request, flight.arrival_s)
            return
        if adapter is not None:
            # Loading or resident: the router knows what it has sent before the next scrape says so.
            candidate.adapters.add(adapter)
        flight.ahead_tokens = candidate.prefill_tokens
        self._flights[str(request.index)] = flight

    def _seed(self, adapter: str | None) -> bytes:
        if adapter not in self._seeds:
            self._seeds[adapter] = seed_hash(self._config.model, adapter, None)
        return self._seeds[adapter]

    def _engine_request(self, request: TraceRequest, chain: Sequence[bytes], adapter: str | None) -> EngineRequest:
        return EngineRequest(
            request_id=str(request.index),
            prompt_tokens=request.input_length,
            output_tokens=request.output_length,
            block_hashes=trace_keys(request, chain, self._config.engine.block_size),
            adapter=adapter,
        )

    def _refuse(self, request: TraceRequest, now: float) -> None:
        self._digest.update(b"%d -\n" % request.index)
        self._records[request.index] = RequestRecord(
            index=request.index, prompt_tokens=request.input_length, intended_s=now, sent_s=now, outcome=TOO_LONG
        )

    def _result(self) -> FleetResult:
        records = tuple(self._records[index] for index in sorted(self._records))
        counters = tuple(replica.engine.stats.counters for replica in self._replicas)
        start = min((record.intended_s for record in records), default=0.0)
        end = max((record.last_s for record in records if record.last_s is not None), default=start)
        return FleetResult(records, counters, self._digest.hexdigest(), end - start)


def _length_class(config: FleetConfig, slot: int) -> str | None:
    if not config.long_replicas:
        return None
    return "long" if slot >= config.replicas - config.long_replicas else "short"
