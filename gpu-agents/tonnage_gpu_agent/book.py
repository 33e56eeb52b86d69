"""What the agent knows of each GPU across runs: last profile, history of ceilings, held verdict, past runs."""

import json
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tonnage_core.gpu_health.guard import Run
from tonnage_core.gpu_health.profile import GpuIdentity, ceilings, gpu_profile
from tonnage_core.gpu_health.rules import (
    FLEET,
    HISTORY,
    HealthReadings,
    baseline_findings,
    correctness_findings,
    no_baseline,
    right_figures,
    spec_findings,
    telemetry_findings,
)
from tonnage_core.gpu_health.verdict import Evidence, Hysteresis, Status, VerdictState, acknowledge, observe, summarise
from tonnage_core.gpu_health.xid import XidPolicy
from tonnage_gpu_agent.errors import AgentError
from tonnage_gpu_agent.runs import RunReport

log = logging.getLogger(__name__)
KEPT_VALUES = 50
KEPT_RUNS = 200
SCHEMA = "tonnage.gpu_book/1"


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """One GPU's past. `history` holds ceilings of runs whose evidence was OK, oldest first: a slow run never drags
    its own baseline down. Where no rule can judge a GPU yet, its valid runs begin the history (`_belongs`)."""

    verdict: VerdictState = field(default_factory=VerdictState)
    history: Mapping[str, Sequence[float]] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()
    profile: Mapping[str, Any] | None = None


class ProfileBook:
    """Records by uuid, in memory and, when a folder is given, in `profiles.json` there (written whole, by rename)."""

    def __init__(self, folder: str = "", rules: Hysteresis | None = None, xids: XidPolicy | None = None) -> None:
        self._path = Path(folder) / "profiles.json" if folder else None
        self.rules = rules or Hysteresis()
        self.xids = xids or XidPolicy()
        self.records: dict[str, GpuRecord] = {}
        self.unsaved: str | None = None
        if self._path is not None and self._path.exists():
            self.records = _loaded(self._path)

    def record(self, uuid: str) -> GpuRecord:
        """The GPU's record; an empty one when it is new."""
        return self.records.get(uuid, GpuRecord())

    def judge(
        self,
        report: RunReport,
        *,
        uuid: str,
        spec: Mapping[str, float | None],
        health: HealthReadings,
        fleet: Mapping[str, Sequence[float]] | None = None,
    ) -> Evidence:
        """The evidence of a run. A run that was cut short by another user or the clock is no evidence of speed."""
        measured = ceilings(report.points)
        findings = [*correctness_findings(report.points), *telemetry_findings(health, self.xids)]
        if report.outcome == "ok":
            past = self.record(uuid).history
            speed = spec_findings(measured, spec)
            speed += baseline_findings(measured, past, HISTORY)
            speed += baseline_findings(measured, fleet or {}, FLEET)
            findings += speed or [no_baseline(measured, past)]
        return summarise(findings, active=report.outcome == "ok", right=right_figures(report.points))

    def conclude(
        self,
        identity: GpuIdentity,
        report: RunReport,
        evidence: Evidence,
        *,
        now: float,
        context: Mapping[str, Any],
        version: str,
    ) -> dict[str, Any]:
        """The new profile, with the held verdict; a run that gave no evidence shows as UNKNOWN with its reason.

        Only what a run measured replaces what is known: after a busy run the last good profile stays, and the
        returned document says what happened.
        """
        known = self.record(identity.uuid)
        verdict = observe(known.verdict, evidence, now, self.rules)
        shown: dict[str, Any] = verdict.document()
        shown["findings"] = [asdict(f) | {"status": f.status.value} for f in evidence.findings]
        if report.outcome != "ok":
            shown |= {
                "status": Status.UNKNOWN.value,
                "reasons": [f"{report.outcome}: {report.detail}"],
                "held": verdict.status.value,
            }
        stamp = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        document = gpu_profile(
            identity, report.points, measured_at=stamp, context=context, verdict=shown, version=version
        )
        history = {key: list(values) for key, values in known.history.items()}
        if _belongs(evidence, verdict):
            for key, value in document["ceilings"].items():
                history[key] = [*history.get(key, ()), value][-KEPT_VALUES:]
        runs = (*known.runs, Run(now - report.seconds, report.seconds))[-KEPT_RUNS:]
        kept = document if report.outcome == "ok" or known.profile is None else known.profile
        self._store(identity.uuid, GpuRecord(verdict, history, runs, kept))
        return document

    def passive(self, uuid: str, health: HealthReadings, now: float) -> VerdictState:
        """The verdict after a look at telemetry alone: it can worsen a verdict, never clear one."""
        known = self.record(uuid)
        evidence = summarise(telemetry_findings(health, self.xids), active=False)
        verdict = observe(known.verdict, evidence, now, self.rules)
        if verdict != known.verdict:
            self._store(uuid, _with_verdict(known, verdict))
        return verdict

    def clear(self, uuid: str, by: str, why: str, now: float) -> VerdictState:
        """An operator clears the verdict; it is UNKNOWN until the next probe and keeps who said so."""
        known = self.record(uuid)
        verdict = acknowledge(known.verdict, by, why, now)
        self._store(uuid, _with_verdict(known, verdict))
        return verdict

    def _store(self, uuid: str, record: GpuRecord) -> None:
        self.records[uuid] = record
        if self._path is None:
            return
        try:
            self._write(self._path)
            self.unsaved = None
        except OSError as error:
            self.unsaved = f"{self._path}: {error.strerror or error}"
            log.error("profiles not saved: kept in memory until the next change", extra={"reason": self.unsaved})

    def _write(self, path: Path) -> None:
        document = {"schema": SCHEMA, "gpus": {key: asdict(value) for key, value in self.records.items()}}
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as written:
            try:
                json.dump(document, written)
                written.flush()
                os.fsync(written.fileno())
            except OSError:
                os.unlink(written.name)
                raise
        os.replace(written.name, path)


def _belongs(evidence: Evidence, held: VerdictState) -> bool:
    """Whether a run enters the history: OK, or whole and correct where no rule could judge it.

    A run that was stopped is not `active`; a wrong result, throttling or an XID make it WARN or FAIL. A GPU that is
    held to be FAIL begins no history until it was cleared: a broken GPU would become its own measure.
    """
    if evidence.status is Status.UNKNOWN:
        return evidence.active and held.status is not Status.FAIL
    return evidence.status is Status.OK


def _with_verdict(record: GpuRecord, verdict: VerdictState) -> GpuRecord:
    profile = record.profile
    if profile is not None:
        profile = {**profile, "verdict": {**profile["verdict"], **verdict.document()}}
    return GpuRecord(verdict, record.history, record.runs, profile)


def _loaded(path: Path) -> dict[str, GpuRecord]:
    """The records of a file; `AgentError` names it when it is not one of ours."""
    try:
        document = json.loads(path.read_text())
        if document["schema"] != SCHEMA:
            raise AgentError(f"{path}: schema {document['schema']!r}, expected {SCHEMA!r}: move the file away")
        return {uuid: _record(found) for uuid, found in document["gpus"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AgentError(f"{path}: not a profile book ({error}): move the file away") from error


def _record(found: Mapping[str, Any]) -> GpuRecord:
    """A GPU's record. What is read here goes out again in metrics and profiles: a wrong kind is refused now."""
    json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    held = found["verdict"]
    verdict = VerdictState(
        Status(held["status"]),
        tuple(_text(reason) for reason in held["reasons"]),
        _number(held["since"]),
        tuple(Status(s) for s in held["recent"]),
        None if held["last_evidence"] is None else _number(held["last_evidence"]),
        tuple(_text(figure) for figure in held.get("blamed", ())),
    )
    history = {_text(key): [_number(value) for value in values] for key, values in found["history"].items()}
    runs = tuple(Run(_number(run["started"]), _number(run["seconds"])) for run in found["runs"])
    return GpuRecord(verdict, history, runs, None if found["profile"] is None else _profile(found["profile"]))


def _profile(found: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in ("schema", "uuid", "product"):
        _text(found[name])
    if isinstance(found["index"], bool) or not isinstance(found["index"], int):
        raise ValueError(f"index {found['index']!r} is no number")
    for value in found["ceilings"].values():
        _number(value)
    dict(found["verdict"].items())
    return found


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{str(value)[:40]!r} is no number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]!r} is no text")
    return value
