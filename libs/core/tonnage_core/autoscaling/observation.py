"""What is known of each endpoint, how old it is and, when nothing is, why.

A track remembers the last good reading and every attempt since; an observation is a track seen at one moment. A reading
older than `stale_after_s` is shown and not used. So is one of an engine whose page stands still: it answers, its gauges
(or the router) say that requests run, and no counter has moved for `FROZEN_AFTER_S`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from tonnage_core.autoscaling.engine_metrics import EngineReading, Signal

FROZEN_AFTER_S = 30.0
"""A running request makes tokens every few milliseconds: half a minute without one is a page that stands still."""


class Outcome(StrEnum):
    """How one scrape ended."""

    OK = "ok"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    HTTP_ERROR = "http_error"
    TOO_LARGE = "too_large"
    UNPARSABLE = "unparsable"
    NO_ENGINE_METRICS = "no_engine_metrics"


class Knowledge(StrEnum):
    """What an endpoint's numbers are worth now."""

    FRESH = "fresh"
    STALE = "stale"
    """There was a good reading, too long ago to use."""
    PENDING = "pending"
    """Joined the list a short while ago and never read: a replica that starts, which is capacity on its way."""
    STUCK = "stuck"
    """Joined while the planner watched and never answered in the time a start may take: it cannot be scheduled or does
    not come up. It carries nothing, and is no capacity on its way."""
    UNKNOWN = "unknown"
    """Never read, and not starting: listed before the planner watched, or answering with no metrics for too long."""


@dataclass(frozen=True)
class Attempt:
    """One scrape: when it ended and what it gave."""

    at_s: float
    outcome: Outcome
    reading: EngineReading | None = None
    detail: str = ""


@dataclass(frozen=True)
class Track:
    """One endpoint's history: the last good reading, the last attempt, rates between the last two good readings."""

    url: str
    pool: str
    listed_at_s: float
    joined: bool = False
    """It joined while the planner watched. One that was there before may well be serving: it is unknown at once."""
    last_ok: Attempt | None = None
    last: Attempt | None = None
    failures: int = 0
    """Attempts since the last good one."""
    rates_per_s: Mapping[str, float | None] = field(default_factory=dict)
    restarts: int = 0
    """Times a counter went back, which is an engine that started again."""
    first_ok_s: float | None = None
    """When it was first read, or first read after a restart."""
    moved_at_s: float | None = None
    """When a counter last moved, or when nothing ran."""
    queued_before: float = 0.0
    """Requests that waited at the good reading before the last one."""
    start_took_s: float | None = None
    ttft_rates: Mapping[float, float | None] = field(default_factory=dict)


def advance(track: Track, attempt: Attempt) -> Track:
    """The track after one more attempt."""
    if attempt.reading is None:
        return replace(track, last=attempt, failures=track.failures + 1)
    before, restarts, rates, late = track.last_ok, track.restarts, track.rates_per_s, track.ttft_rates
    took = attempt.at_s - track.listed_at_s if track.joined and track.first_ok_s is None else track.start_took_s
    first = track.first_ok_s if track.first_ok_s is not None else attempt.at_s
    if before is not None and before.reading is not None and attempt.at_s > before.at_s:
        seconds = attempt.at_s - before.at_s
        rates, went_back = counter_rates(before.reading.counters, attempt.reading.counters, seconds)
        late, _ = counter_rates(before.reading.ttft_buckets, attempt.reading.ttft_buckets, seconds)
        restarts += went_back
        first = attempt.at_s if went_back else first
    return replace(
        track,
        last=attempt,
        last_ok=attempt,
        failures=0,
        rates_per_s=rates,
        restarts=restarts,
        first_ok_s=first,
        moved_at_s=_moved_at(track, attempt),
        start_took_s=took,
        ttft_rates=late,
        queued_before=(before.reading.gauges.get(Signal.WAITING) or 0.0) if before and before.reading else 0.0,
    )


def _moved_at(track: Track, attempt: Attempt) -> float:
    """When the page last changed: it moves while a counter does, and may rest while nothing runs."""
    before, reading = track.last_ok, attempt.reading
    if before is None or before.reading is None or reading is None or track.moved_at_s is None:
        return attempt.at_s
    counted = {name: value for name, value in reading.counters.items() if value is not None}
    if not counted or counted != {name: before.reading.counters.get(name) for name in counted}:
        return attempt.at_s
    return track.moved_at_s


_Key = TypeVar("_Key")


def counter_rates(
    before: Mapping[_Key, float | None], after: Mapping[_Key, float | None], seconds: float
) -> tuple[dict[_Key, float | None], bool]:
    """Per-second increases of counters over `seconds` (> 0), and whether any went back.

    A counter that went back was reset: its increase is then what it counted since, as Prometheus' `increase` has it.
    Unknown at either end leaves the rate unknown.
    """
    rates: dict[_Key, float | None] = {}
    went_back = False
    for name, now in after.items():
        then = before.get(name)
        if then is None or now is None:
            rates[name] = None
            continue
        reset = now < then
        went_back = went_back or reset
        rates[name] = (now if reset else now - then) / seconds
    return rates, went_back


@dataclass(frozen=True)
class Observation:
    """An endpoint as seen at one moment."""

    url: str
    pool: str
    knowledge: Knowledge
    reason: str
    """Why it is not fresh; empty when it is."""
    age_s: float | None
    """Since the last good reading; None when there was none."""
    unknown_for_s: float
    """How long its load has been unknown; 0 when fresh."""
    reading: EngineReading | None
    rates_per_s: Mapping[str, float | None] = field(default_factory=dict)
    restarts: int = 0
    serving_for_s: float = 0.0
    """Since its first good reading, or the first after a restart."""
    queued_before: float = 0.0
    """Requests that waited at the good reading before this one."""
    start_took_s: float | None = None
    """From its joining the list to its first good reading; None when it has not started under our eyes."""
    ttft_rates: Mapping[float, float | None] = field(default_factory=dict)
    """First tokens a second by upper bound of TTFT in seconds, cumulative; infinity is all of them."""
    speed: float = 1.0
    """What it carries, in replicas of the pool's reference: other than 1 where a pool has several GPU classes."""

    def value(self, signal: Signal) -> float | None:
        """The signal when it is fresh and was sent, else None."""
        if self.knowledge is not Knowledge.FRESH or self.reading is None:
            return None
        return self.reading.gauges.get(signal)

    def never_sends(self, signal: Signal) -> bool:
        """True for a signal this version of the endpoint's engine does not have."""
        return self.reading is not None and signal in self.reading.never_sent


def observe(
    track: Track, now_s: float, *, stale_after_s: float, start_grace_s: float, router_in_flight: float | None = None
) -> Observation:
    """The track at `now_s`: fresh, stale, pending, stuck or unknown.

    `router_in_flight` is what the router says runs there, when it does: it tells a page that froze while idle.
    """
    reading = track.last_ok.reading if track.last_ok else None
    age = max(0.0, now_s - track.last_ok.at_s) if track.last_ok else None
    frozen_s = _frozen_s(track, now_s, router_in_flight)
    since_known = age if age is not None else now_s - track.listed_at_s
    starting = now_s - track.listed_at_s <= start_grace_s
    knowledge = _knowledge(age, stale_after_s, track, starting=starting)
    if knowledge is Knowledge.FRESH and frozen_s > FROZEN_AFTER_S:
        knowledge, since_known = Knowledge.STALE, frozen_s
    fresh = knowledge is Knowledge.FRESH
    return Observation(
        url=track.url,
        pool=track.pool,
        knowledge=knowledge,
        reason="" if fresh else _reason(track, frozen_s),
        age_s=age,
        unknown_for_s=0.0 if fresh else since_known,
        reading=reading,
        rates_per_s=track.rates_per_s,
        restarts=track.restarts,
        serving_for_s=now_s - track.first_ok_s if track.first_ok_s is not None else 0.0,
        queued_before=track.queued_before,
        start_took_s=track.start_took_s,
        ttft_rates=track.ttft_rates,
    )


def _frozen_s(track: Track, now_s: float, router_in_flight: float | None) -> float:
    """How long its page has stood still while work was there; 0 when it moves or nothing runs."""
    reading = track.last_ok.reading if track.last_ok else None
    if reading is None or track.moved_at_s is None:
        return 0.0
    works = bool(reading.gauges.get(Signal.RUNNING)) or bool(router_in_flight)
    return now_s - track.moved_at_s if works else 0.0


def _knowledge(age_s: float | None, stale_after_s: float, track: Track, *, starting: bool) -> Knowledge:
    if age_s is not None:
        return Knowledge.FRESH if age_s <= stale_after_s else Knowledge.STALE
    if track.joined and starting:
        return Knowledge.PENDING
    # One that answers, though not with metrics, is up and may well serve: what it carries is unknown.
    silent = track.last is None or track.last.outcome in (Outcome.UNREACHABLE, Outcome.TIMEOUT)
    return Knowledge.STUCK if track.joined and silent else Knowledge.UNKNOWN


def _reason(track: Track, frozen_s: float) -> str:
    if frozen_s > FROZEN_AFTER_S:
        return f"frozen: requests run and no counter has moved for {frozen_s:.0f} s"
    if track.last is None:
        return "not read yet"
    if track.last.reading is not None:
        return "not read again since"
    return f"{track.last.outcome.value}: {track.last.detail}" if track.last.detail else track.last.outcome.value
