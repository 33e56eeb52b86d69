"""Who may make a run: leases as a pure rule, so that a run that is sent twice is made once.

A run is *waiting* until a worker claims it, *claimed* while the worker's lease holds, then *done*. Sending it to a
queue is only a hint: what is lost is sent again, what arrives twice finds the claim taken. A claim whose lease has
passed opens the next attempt, and only the current attempt's worker may hand in a result. The worker stops its load
before its lease can have passed, by counting from the instant it sent its last heartbeat that was answered.
"""

from dataclasses import dataclass
from enum import Enum


class StepAction(Enum):
    """What to do about a run that is not done."""

    WAIT = "wait"
    SEND = "send"
    """Put it on the queue again: nobody claimed it."""
    RETRY = "retry"
    """Open the next attempt: its worker is gone."""
    GIVE_UP = "give_up"
    """As many attempts as allowed have died."""


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """Seconds a heartbeat holds a claim, seconds after which an unclaimed run is sent again, attempts in all."""

    lease_s: float = 15.0
    resend_s: float = 10.0
    attempts: int = 3


@dataclass(frozen=True, slots=True)
class StepView:
    """What the rule looks at; instants in wall seconds, `lease_until_s` None unless claimed."""

    claimed: bool
    attempt: int
    sent_s: float | None
    lease_until_s: float | None


def step_action(step: StepView, now_s: float, rules: LeaseRules) -> StepAction:
    """What to do now. A clock that went back makes a lease that has just begun, never one without end."""
    if step.claimed:
        until = now_s if step.lease_until_s is None else min(step.lease_until_s, now_s + rules.lease_s)
        if until > now_s:
            return StepAction.WAIT
        return StepAction.RETRY if step.attempt < rules.attempts else StepAction.GIVE_UP
    if step.sent_s is None or not 0 <= now_s - step.sent_s < rules.resend_s:
        return StepAction.SEND
    return StepAction.WAIT
