"""What a scaled fleet does next, without I/O: the planner's target and the engines there are in, steps out.

Going up, engines that still drain are taken back first. Going down, the newest go first: they hold the least of the
prefix cache. An engine that drains is ended when neither router nor engine knows of a request, and only then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    """Where an engine stands."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


class Step(StrEnum):
    """What happens to an engine."""

    START = "asked"
    SERVE = "serving"
    DRAIN = "drained"
    RECALL = "recalled"
    END = "ended"


def steps(target: int, engines: Mapping[int, Stage], most: int) -> list[tuple[Step, int]]:
    """The steps that bring `engines` (by number, 0 to `most` - 1) to `target`. Draining ones do not count."""
    staying = [number for number, stage in engines.items() if stage is not Stage.DRAINING]
    if target < len(staying):
        return [(Step.DRAIN, number) for number in sorted(staying, reverse=True)[: len(staying) - target]]
    missing = target - len(staying)
    back = sorted(number for number, stage in engines.items() if stage is Stage.DRAINING)[:missing]
    free = [number for number in range(most) if number not in engines][: missing - len(back)]
    return [(Step.RECALL, number) for number in back] + [(Step.START, number) for number in free]


@dataclass(frozen=True, slots=True)
class Event:
    """One change, in engine seconds after the fleet was ready. `left` are requests that an engine ended with."""

    at_s: float
    step: Step
    engine: int
    left: int = 0


@dataclass(frozen=True, slots=True)
class TargetChange:
    """The planner moved its target; `moved_by` is the signal that did it, `reason` its own words."""

    at_s: float
    before: int
    after: int
    moved_by: str | None
    reason: str


def document(
    events: Sequence[Event], changes: Sequence[TargetChange], *, first: int, most: int, now_s: float
) -> dict[str, object]:
    """The `autoscale` part of a report: what was held when, what it cost, what was cut. Times in engine seconds."""
    held, peak, paid_s, since = first, first, 0.0, 0.0
    for event in events:
        change = {Step.START: 1, Step.END: -1}.get(event.step, 0)
        paid_s += held * (event.at_s - since)
        since, held = event.at_s, held + change
        peak = max(peak, held)
    paid_s += held * (now_s - since)
    return {
        "min_replicas": first,
        "max_replicas": most,
        "peak_replicas": peak,
        "final_replicas": held,
        "replica_hours": round(paid_s / 3600, 4),
        "cut_streams": sum(event.left for event in events),
        "targets": [
            {
                "at_s": round(one.at_s, 1),
                "before": one.before,
                "after": one.after,
                "moved_by": one.moved_by,
                "reason": one.reason,
            }
            for one in changes
        ],
        "engines": [
            {"at_s": round(one.at_s, 1), "engine": one.engine, "event": one.step.value, "left": one.left}
            for one in events
        ],
    }
