"""What is known of each endpoint, how old it is and, when nothing is, why.

A track remembers the last good reading and every attempt since; an observation is a track seen at one moment. A reading
older than `stale_after_s` is shown and not used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tonnage_core.autoscaling.engine_metrics import EngineReading, Signal


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
    UNKNOWN = "unknown"
    """Never read, and not starting: listed before the planner watched, or for too long."""


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


def advance(track: Track, attempt: Attempt) -> Track:
    """The track after one more attempt."""
    if attempt.reading is None:
        return replace(track, last=attempt, failures=track.failures + 1)
    before, restarts, rates = track.last_ok, track.restarts, track.rates_per_s
    if before is not None and before.reading is not None and attempt.at_s > before.at_s:
        rates, went_back = counter_rates(before.reading.counters, attempt.reading.counters, attempt.at_s - before.at_s)
        restarts += went_back
    return replace(track, last=attempt, last_ok=attempt, failures=0, rates_per_s=rates, restarts=restarts)


def counter_rates(
    before: Mapping[str, float | None], after: Mapping[str, float | None], seconds: float
) -> tuple[dict[str, float | None], bool]:
    """Per-second increases of counters over `seconds` (> 0), and whether any went back.

    A counter that went back was reset: its increase is then what it counted since, as Prometheus' `increase` has it.
    Unknown at either end leaves the rate unknown.
    """
    rates: dict[str, float | None] = {}
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

    def value(self, signal: Signal) -> float | None:
        """The signal when it is fresh and was sent, else None."""
        if self.knowledge is not Knowledge.FRESH or self.reading is None:
            return None
        return self.reading.gauges.get(signal)

    def never_sends(self, signal: Signal) -> bool:
        """True for a signal this version of the endpoint's engine does not have."""
        return self.reading is not None and signal in self.reading.never_sent


def observe(track: Track, now_s: float, *, stale_after_s: float, start_grace_s: float) -> Observation:
    """The track at `now_s`: fresh, stale, pending or unknown."""
    reading = track.last_ok.reading if track.last_ok else None
    age = now_s - track.last_ok.at_s if track.last_ok else None
    since_known = age if age is not None else now_s - track.listed_at_s
    starting = track.joined and now_s - track.listed_at_s <= start_grace_s
    knowledge = _knowledge(age, stale_after_s, starting)
    fresh = knowledge is Knowledge.FRESH
    return Observation(
        url=track.url,
        pool=track.pool,
        knowledge=knowledge,
        reason="" if fresh else _reason(track),
        age_s=age,
        unknown_for_s=0.0 if fresh else since_known,
        reading=reading,
        rates_per_s=track.rates_per_s,
        restarts=track.restarts,
    )


def _knowledge(age_s: float | None, stale_after_s: float, starting: bool) -> Knowledge:
    if age_s is not None:
        return Knowledge.FRESH if age_s <= stale_after_s else Knowledge.STALE
    return Knowledge.PENDING if starting else Knowledge.UNKNOWN


def _reason(track: Track) -> str:
    if track.last is None:
        return "not read yet"
    if track.last.reading is not None:
        return "not read again since"
    return f"{track.last.outcome.value}: {track.last.detail}" if track.last.detail else track.last.outcome.value
