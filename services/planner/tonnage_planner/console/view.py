"""The Fleet page's document: gathered, written once for everybody who looks at the same moment."""

import asyncio
import gzip
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from tonnage_core.autoscaling.observation import Knowledge, Observation
from tonnage_planner.console.parts import Parts
from tonnage_planner.console.reading import mappings, number, text, texts, whole
from tonnage_planner.console.rows import RANK, endpoint_rows
from tonnage_planner.documents import VERSION, LoadDocument, NeedDocument, OutlookDocument, ReasonDocument
from tonnage_planner.fleet import Fleet
from tonnage_planner.ports import EndpointSource
from tonnage_planner.settings import EndpointSettings, PlannerSettings
from tonnage_runtime.clock import Clock
from tonnage_runtime.errors import SettingsError

WAIT_S = 0.25
"""How long an answer waits for slow parts; what they say is then in a later one."""
SHARED_S = 0.5
"""Answers within this time are the same bytes."""
MOST_STARTS = 50


class FleetView:
    """`engine_clock` runs with the engines' time, `clock` with the machine's."""

    def __init__(
        self,
        settings: PlannerSettings,
        fleet: Fleet,
        source: EndpointSource,
        parts: Parts,
        *,
        engine_clock: Clock,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._source = source
        self._parts = parts
        self._engine_clock = engine_clock
        self._clock = clock
        self.profiles: Mapping[str, Mapping[str, Any]] = {}
        """GpuProfiles kept in the planner's library, without samples, by `node/index`."""
        self._written: tuple[float, bytes, bytes] | None = None
        self._writing = asyncio.Lock()

    async def bytes(self, *, zipped: bool) -> bytes:
        """The document as JSON, `zipped` with gzip."""
        async with self._writing:  # a crowd that comes at once is answered from one look
            if self._written is None or self._clock.monotonic() - self._written[0] > SHARED_S:
                await self._parts.refresh(WAIT_S)
                plain = orjson.dumps(self.document())
                self._written = (self._clock.monotonic(), plain, gzip.compress(plain, 1))
            return self._written[2] if zipped else self._written[1]

    def seen(self) -> list[Observation]:
        """Every endpoint as the planner sees it now."""
        return self._fleet.observations(self._engine_clock.monotonic())

    def document(self) -> dict[str, Any]:
        """The fields of `ConsoleFleet`."""
        seen = self.seen()
        routers = [document for _, document in self._parts.documents("router", "/admin/endpoints")]
        rows = endpoint_rows(seen, routers, self._listed(), self._verdicts())
        rows.sort(key=lambda row: -RANK[row["state"]])
        local = next((document for _, document in self._parts.documents("fleet", "/")), {})
        return {
            "schema": "tonnage.console_fleet/1",
            "version": VERSION,
            "at": self._clock.wall(),
            "policy": next((name for document in routers if (name := text(document.get("policy")))), None),
            "list_error": self._fleet.source_error,
            "parts": self.parts(),
            "parts_left_out": self._parts.left_out,
            "pools": [self._pool(pool, seen) for pool in self._fleet.decided],
            "endpoints": rows[: self._settings.console_rows],
            "endpoints_total": len(rows),
            **self._gpus(),
            **self._starts(),
            "replay": _replay(local.get("replay")),
            "processes": [_process(one) for one in mappings(local.get("processes"))],
        }

    def parts(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The fields of each `PartDocument`."""
        found = []
        for part in self._parts.parts():
            if kind is None or part.kind == kind:
                state, age, problem = self._parts.state_of(part)
                found.append({"kind": part.kind, "url": part.url, "state": state, "age_s": age, "problem": problem})
        return found

    def _listed(self) -> Mapping[str, EndpointSettings]:
        try:
            return {one.url.rstrip("/"): one for one in self._source.endpoints()}
        except SettingsError:
            return {}

    def _verdicts(self) -> dict[str, str]:
        """Verdict by `node/index`: what the agents say goes before what was sent here."""
        found: dict[str, str] = {}
        documents = [document for _, document in self._parts.documents("agent", "/v1/profiles")]
        said = [one for document in documents for one in mappings(document.get("profiles"))]
        for one in (*self.profiles.values(), *said):
            status = _verdict(one)
            if status is not None:
                found[f"{one.get('node')}/{one.get('index')}"] = status
        return found

    def _pool(self, pool: str, seen: Sequence[Observation]) -> dict[str, Any]:
        decided, policy = self._fleet.decided[pool], self._fleet.policy_of(pool)
        decision, now = decided.decision, self._engine_clock.monotonic()
        members = [one for one in seen if one.pool == pool]
        router = decision.load.router
        return {
            "pool": pool,
            "desired_replicas": decision.target,
            "listed_endpoints": len(members),
            "known_endpoints": decision.load.known_endpoints,
            "starting_endpoints": sum(one.knowledge is Knowledge.PENDING for one in members),
            "min_replicas": policy.min_replicas,
            "max_replicas": policy.max_replicas,
            "moved_by": decision.moved_by.value if decision.moved_by else None,
            "asked_by": decision.asked_by.value if decision.asked_by else None,
            "decided_age_s": now - decided.at_s,
            "changed_age_s": None if decided.changed_at_s is None else now - decided.changed_at_s,
            "reasons": [ReasonDocument.of(reason).model_dump() for reason in decision.reasons],
            "needs": [NeedDocument.of(need).model_dump() for need in decision.needs],
            "load": {s.value: LoadDocument.of(one).model_dump() for s, one in decision.load.totals.items()},
            "router_waiting": router.waiting if router else None,
            "outlook": OutlookDocument.of(decision.outlook).model_dump() if decision.outlook else None,
        }

    def _gpus(self) -> dict[str, Any]:
        profiles = {
            (url, text(one.get("uuid"))): one
            for url, document in self._parts.documents("agent", "/v1/profiles")
            for one in mappings(document.get("profiles"))
        }
        agents, gpus = [], []
        for url, document in self._parts.documents("agent", "/v1/gpus"):
            agents.append({"url": url, "mode": text(document.get("mode")), "reason": text(document.get("reason"))})
            for one in mappings(document.get("gpus")):
                gpus.append(_gpu(url, one, profiles.get((url, text(one.get("uuid"))), {})))
        agents_told = {(gpu["node"], gpu["index"]) for gpu in gpus}
        kept = [one for one in self.profiles.values() if (one.get("node"), one.get("index")) not in agents_told]
        return {"gpus": [*gpus, *(_gpu("", one, one) for one in kept)], "agents": agents}

    def _starts(self) -> dict[str, Any]:
        said = self._parts.documents("coldstart", "/v1/stage")
        jobs = [(url, job) for url, document in said for job in mappings(document.get("jobs"))]
        return {"starts": [_start(url, job) for url, job in jobs[::-1][:MOST_STARTS]], "starts_known": bool(said)}


def _verdict(profile: Mapping[str, Any]) -> str | None:
    verdict = profile.get("verdict")
    return text(verdict.get("status")) if isinstance(verdict, Mapping) else None


def _gpu(agent: str, told: Mapping[str, Any], profile: Mapping[str, Any]) -> dict[str, Any]:
    verdict, ceilings = profile.get("verdict"), profile.get("ceilings")
    reasons = verdict.get("reasons") if isinstance(verdict, Mapping) else None
    rates: Mapping[str, Any] = ceilings if isinstance(ceilings, Mapping) else {}
    words = [text(one.get("text")) or text(one.get("code")) or "" for one in mappings(reasons)] or texts(reasons)
    return {
        "agent": agent,
        "node": text(profile.get("node")),
        "index": whole(told.get("index")),
        "product": text(told.get("product")) or text(told.get("name")) or text(profile.get("product")),
        "state": text(told.get("state")),
        "detail": text(told.get("detail")),
        "verdict": _verdict(profile),
        "verdict_reasons": words,
        "measured_at": text(profile.get("measured_at")),
        "hbm_gbps": number(rates.get("hbm_read_gbps")) or number(rates.get("hbm_copy_gbps")),
        "bf16_tflops": number(rates.get("bf16_tflops")),
    }


def _start(service: str, job: Mapping[str, Any]) -> dict[str, Any]:
    standing, error = job.get("progress"), job.get("error")
    at: Mapping[str, Any] = standing if isinstance(standing, Mapping) else {}
    return {
        "service": service,
        "id": text(job.get("id")),
        "uri": text(job.get("uri")),
        "state": text(job.get("state")),
        "phase": text(at.get("phase")),
        "done_bytes": number(at.get("done_bytes")),
        "total_bytes": number(at.get("total_bytes")),
        "bytes_per_s": number(at.get("bytes_per_s")),
        "eta_s": number(at.get("eta_s")),
        "seconds": number(at.get("seconds")),
        "error": text(error.get("message")) if isinstance(error, Mapping) else None,
    }


def _replay(told: object) -> dict[str, Any] | None:
    if not isinstance(told, Mapping):
        return None
    counted = {name: whole(told.get(name)) for name in ("total", "done", "in_flight", "errors")}
    named = {name: text(told.get(name)) for name in ("trace", "policy", "state")}
    return {**named, **counted, "speed": number(told.get("speed"))}


def _process(one: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": text(one.get("name")), "state": text(one.get("state")), "restarts": whole(one.get("restarts"))}
