"""What a wish must pass: replicas that cannot start, the budget, how fast a pool may change.

Replicas that do not come up within the time a start may take are given up: the target falls to those that live, and
for `retry_stuck_s` no more are asked for, with a condition that says so. Asking on would only add pods that wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tonnage_core.autoscaling.observation import Knowledge, Observation
from tonnage_core.autoscaling.policy import ScalingPolicy

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Caps:
    """What the limits remember: the cap after giving up, and the changes of the last minute."""

    most: int | None = None
    until_s: float = 0.0
    steps: tuple[tuple[float, int], ...] = ()
    """(when, replicas added or given up)."""


def give_up(caps: Caps, seen: Sequence[Observation], now_s: float, policy: ScalingPolicy) -> Caps:
    """The caps after looking for replicas that cannot start; a cap ends with its time."""
    stuck = sum(one.knowledge is Knowledge.STUCK for one in seen)
    if stuck:
        return Caps(len(seen) - stuck, now_s + policy.retry_stuck_s, caps.steps)
    if caps.most is not None and now_s >= caps.until_s:
        return Caps(None, 0.0, caps.steps)
    return caps


def allowed(caps: Caps, target: int, wanted: int, now_s: float, policy: ScalingPolicy) -> int:
    """As much of the way from `target` to `wanted` as the last minute leaves."""
    recent = [(at, step) for at, step in caps.steps if 0 <= now_s - at < MINUTE_S]
    if wanted > target:
        limit, used = policy.max_up_per_minute, sum(step for _, step in recent if step > 0)
        return wanted if limit is None else min(wanted, target + max(0, limit - used))
    limit, used = policy.max_down_per_minute, -sum(step for _, step in recent if step < 0)
    return wanted if limit is None else max(wanted, target - max(0, limit - used))


def stepped(caps: Caps, change: int, now_s: float) -> Caps:
    """The caps after a change of the target."""
    recent = tuple((at, step) for at, step in caps.steps if 0 <= now_s - at < MINUTE_S)
    return Caps(caps.most, caps.until_s, (*recent, (now_s, change)) if change else recent)
