"""LoRA adapters: known ones are models of their own, loaded where a request for one is sent, one load at a time."""

import asyncio
import logging
from typing import TYPE_CHECKING

import orjson

from tonnage_router.adapters.http_call import call
from tonnage_router.errors import ProbeError

if TYPE_CHECKING:
    from tonnage_core.scheduling.residency import Residency
    from tonnage_router.exchange import Exchange
    from tonnage_router.fleet import Endpoint
    from tonnage_router.settings import AdapterSpec

log = logging.getLogger(__name__)

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
ALREADY = b"already been loaded"
ANSWER_SHOWN = 300
"""Bytes of a refused load's answer in the log."""


class LoraLoader:
    """Single-flight loads by (engine, adapter); requests that need the adapter wait for the same load. Ranks of one
    engine share its residency."""

    def __init__(self, specs: "list[AdapterSpec]", timeout_s: float, counts: dict[str, int]) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self._timeout_s = timeout_s
        self._waiting: dict[tuple[Residency, str], list[Exchange]] = {}
        self._loads: dict[tuple[Residency, str], asyncio.Task[bool]] = {}
        self._counts = counts

    def parent(self, name: str) -> str | None:
        """The base model of a known adapter."""
        spec = self.specs.get(name)
        return None if spec is None else spec.parent

    def ready(self, exchange: "Exchange", endpoint: "Endpoint") -> bool:
        """Whether the request may be sent now; else it hears `resume` or `adapter_failed` later."""
        name = exchange.facts.model
        spec = self.specs.get(name) if name is not None else None
        if spec is None or endpoint.residency.holds(spec.name):
            return True
        self._waiting.setdefault((endpoint.residency, spec.name), []).append(exchange)
        self._loading(endpoint, spec)
        return False

    async def ensure(self, name: str, endpoint: "Endpoint") -> bool:
        """Whether a model may be asked of the endpoint, once its adapter is loaded there if it is one."""
        spec = self.specs.get(name)
        if spec is None or endpoint.residency.holds(name):
            return True
        return await asyncio.shield(self._loading(endpoint, spec))

    def _loading(self, endpoint: "Endpoint", spec: "AdapterSpec") -> asyncio.Task[bool]:
        """The load under way, or a new one."""
        key = (endpoint.residency, spec.name)
        task = self._loads.get(key)
        if task is None:
            endpoint.residency.begin_load(spec.name)
            self._publish(endpoint)
            task = self._loads[key] = asyncio.get_running_loop().create_task(self._load(endpoint, spec))
        return task

    async def _load(self, endpoint: "Endpoint", spec: "AdapterSpec") -> bool:
        loaded = False
        try:
            await self._make_room(endpoint, spec.name)
            body = orjson.dumps({"lora_name": spec.name, "lora_path": spec.path})
            answer = await self._call(endpoint, LOAD, body)
            loaded = answer[0] == 200 or ALREADY in answer[1]
            if not loaded:
                said = {"status": answer[0], "answer": answer[1][:ANSWER_SHOWN].decode("utf-8", "replace")}
                log.warning("adapter not loaded", extra={"endpoint": endpoint.id, "adapter": spec.name} | said)
        except ProbeError as error:
            told = {"endpoint": endpoint.id, "adapter": spec.name, "problem": str(error)}
            log.warning("adapter not loaded", extra=told)
        finally:
            endpoint.residency.end_load(spec.name, loaded)
            self._publish(endpoint)
            self._count("loaded" if loaded else "failed")
            self._loads.pop((endpoint.residency, spec.name), None)
            for exchange in self._waiting.pop((endpoint.residency, spec.name), []):
                there = exchange.endpoint
                if not exchange.ended and there is not None and there.residency is endpoint.residency:
                    exchange.resume() if loaded else exchange.adapter_failed()
        return loaded

    async def _make_room(self, endpoint: "Endpoint", name: str) -> None:
        residency, slots = endpoint.residency, endpoint.candidate.adapter_slots
        while slots is not None and len(residency.names) > slots:
            victim = residency.victim(slots, self.specs)
            if victim is None:
                return  # each is in use, or its path is unknown here: the engine swaps by itself, or refuses
            residency.unloaded(victim)
            self._count("unloaded")
            await self._call(endpoint, UNLOAD, orjson.dumps({"lora_name": victim}))
            log.info("adapter unloaded", extra={"endpoint": endpoint.id, "adapter": victim, "for": name})

    async def _call(self, endpoint: "Endpoint", path: str, body: bytes) -> tuple[int, bytes]:
        answer = await call(
            endpoint.host, endpoint.port, path, timeout_s=self._timeout_s, body=body, api_key=endpoint.spec.api_key
        )
        return answer.status, answer.body

    def _count(self, outcome: str) -> None:
        self._counts[outcome] = self._counts.get(outcome, 0) + 1

    @staticmethod
    def _publish(endpoint: "Endpoint") -> None:
        endpoint.candidate.adapters = endpoint.residency.names
