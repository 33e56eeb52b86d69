"""The verdict of a GPU: what the evidence says now, and what holds after N-of-M hysteresis both ways."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """OK and FAIL need evidence; without any the verdict is UNKNOWN."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"


FIGURES = frozenset({"spec_floor", "own_history", "fleet_median", "wrong_result"})
"""Rules whose findings are about one measured figure: only a look at the same figure speaks against them."""
SEVERITY = {Status.UNKNOWN: -1, Status.OK: 0, Status.WARN: 1, Status.FAIL: 2}


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One rule's outcome. `code` is stable (`spec_floor:hbm_copy_gbps`), `text` says what was seen and expected.

    `immediate` findings are facts that need no confirmation (a wrong result, a failed row remap).
    """

    code: str
    status: Status
    text: str = ""
    immediate: bool = False

    @property
    def figure(self) -> str | None:
        """The ceiling or probe that the finding is about, None where it is about no measurement."""
        rule, _, figure = self.code.partition(":")
        return figure if rule in FIGURES else None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one look at the GPU says. `active` is true when probes ran under load: only then can it clear a verdict.

    `right` names the ceilings and probes that were measured correctly.
    """

    status: Status
    findings: tuple[Finding, ...] = ()
    active: bool = True
    right: frozenset[str] = frozenset()

    @property
    def immediate(self) -> bool:
        """A finding of this severity needs no confirmation."""
        return any(f.immediate and f.status is self.status for f in self.findings)


def summarise(findings: Iterable[Finding], *, active: bool, right: Iterable[str] = ()) -> Evidence:
    """The worst finding decides. With no finding at all, or OK without a probe under load, the evidence is UNKNOWN."""
    ordered = tuple(sorted(findings))
    known = [f for f in ordered if f.status is not Status.UNKNOWN]
    worst = max((f.status for f in known), key=SEVERITY.__getitem__, default=Status.UNKNOWN)
    if worst is Status.OK and not active:
        worst = Status.UNKNOWN
    return Evidence(worst, ordered, active, frozenset(right))


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """A worse status holds after `fail_n` of the last `fail_m` looks, a better one after `clear_n` of `clear_m`.

    Evidence older than `stale_after_s` is none: the verdict becomes UNKNOWN.
    """

    fail_n: int = 2
    fail_m: int = 3
    clear_n: int = 3
    clear_m: int = 4
    stale_after_s: float = 14 * 86400.0


@dataclass(frozen=True, slots=True)
class VerdictState:
    """The held verdict. `since` moves only when `status` does; `recent` holds statuses of active looks, newest last;
    `blamed` the figures that were bad since the GPU was last OK."""

    status: Status = Status.UNKNOWN
    reasons: tuple[str, ...] = ("never measured",)
    since: float = 0.0
    recent: tuple[Status, ...] = ()
    last_evidence: float | None = None
    blamed: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The `verdict` of a GpuProfile."""
        return {"status": self.status.value, "reasons": list(self.reasons), "since": self.since}


def observe(state: VerdictState, evidence: Evidence, now: float, rules: Hysteresis) -> VerdictState:
    """The verdict after one look.

    One bad look on a healthy GPU is WARN (`unconfirmed`); `fail_n` of `fail_m` make it FAIL; a FAIL is left only by
    `clear_n` good looks under load of the last `clear_m`, each at every figure that was bad: a good copy says nothing
    of a wrong product. UNKNOWN evidence changes nothing but staleness, and says why a probed GPU is still UNKNOWN.
    """
    if evidence.status is Status.UNKNOWN:
        held = expire(state, now, rules)
        why = _reasons(evidence, held.status) if evidence.active and held.status is Status.UNKNOWN else ()
        return replace(held, reasons=why) if why else held
    if not evidence.active and SEVERITY[evidence.status] <= max(0, SEVERITY[state.status]):
        return expire(state, now, rules)
    if evidence.status is Status.OK and not evidence.right.issuperset(state.blamed):
        return expire(state, now, rules)
    window = max(rules.fail_m, rules.clear_m)
    recent = (*state.recent, evidence.status)[-window:]
    status = _held(state.status, evidence, recent, rules)
    reasons = _reasons(evidence, status)
    if status is not Status.OK and evidence.status is Status.OK:
        reasons = state.reasons
    since = state.since if status is state.status else now
    return VerdictState(status, reasons, since, recent, now, _blamed(state, evidence, status))


def _blamed(state: VerdictState, evidence: Evidence, status: Status) -> tuple[str, ...]:
    if status is Status.OK:
        return ()
    bad = (f.figure for f in evidence.findings if f.status in (Status.WARN, Status.FAIL))
    return tuple(sorted({*state.blamed, *(figure for figure in bad if figure)}))


def _held(held: Status, evidence: Evidence, recent: Sequence[Status], rules: Hysteresis) -> Status:
    if evidence.status is Status.FAIL and evidence.immediate:
        return Status.FAIL
    fails = sum(s is Status.FAIL for s in recent[-rules.fail_m :])
    good = sum(s is Status.OK for s in recent[-rules.clear_m :])
    if held is Status.FAIL:
        return Status.OK if good >= rules.clear_n else Status.FAIL
    if fails >= rules.fail_n:
        return Status.FAIL
    if evidence.status is Status.OK:
        return Status.OK if held is not Status.WARN or good >= rules.clear_n else Status.WARN
    return Status.WARN


def _reasons(evidence: Evidence, status: Status) -> tuple[str, ...]:
    worst = [f for f in evidence.findings if f.status is evidence.status and f.status is not Status.OK]
    note = " (unconfirmed)" if evidence.status is Status.FAIL and status is Status.WARN else ""
    return tuple(sorted({f"{f.code}: {f.text}{note}" for f in worst}))


def expire(state: VerdictState, now: float, rules: Hysteresis) -> VerdictState:
    """UNKNOWN when the last evidence is too old; a FAIL stays, since silence clears nothing."""
    if state.status in (Status.UNKNOWN, Status.FAIL) or state.last_evidence is None:
        return state
    if now - state.last_evidence <= rules.stale_after_s:
        return state
    age_h = (now - state.last_evidence) / 3600
    return replace(state, status=Status.UNKNOWN, reasons=(f"stale: measured {age_h:.0f} h ago",), since=now)


def acknowledge(state: VerdictState, by: str, why: str, now: float) -> VerdictState:
    """An operator clears a verdict: it is UNKNOWN until the next probe, and says who cleared it and why."""
    return VerdictState(Status.UNKNOWN, (f"cleared by {by}: {why}; awaiting a probe",), now, (), state.last_evidence)
