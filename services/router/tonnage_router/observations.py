"""What probes found, applied to the candidates that decisions read."""

from typing import TYPE_CHECKING, Any

from tonnage_core.prefix_index.index import ENTRY_BYTES
from tonnage_core.scheduling.speed import relative_speeds
from tonnage_router.adapters.gpu_profiles import read_ceilings
from tonnage_router.engine_metrics import EngineGauges
from tonnage_router.fleet import Endpoint

if TYPE_CHECKING:
    from tonnage_router.gateway import Gateway


class Observations:
    """Writes engines' lists and gauges into the fleet's candidates."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    def speeds(self) -> None:
        """Relative speeds of endpoints whose GpuProfile is known; a speed an operator wrote stays."""
        directory = self._gateway.settings.gpu_profiles_dir
        if directory is None:
            return
        ceilings = read_ceilings(directory)
        wanted = {e: e.spec.gpu_profile for e in self._gateway.fleet if e.spec.gpu_profile and e.spec.gpu_speed is None}
        speeds = relative_speeds({name: ceilings[name] for name in wanted.values() if name in ceilings})
        for endpoint, name in wanted.items():
            endpoint.candidate.gpu_speed = speeds.get(name)

    def models(self, endpoint: Endpoint, entries: list[dict[str, Any]]) -> None:
        """What the engine lists: names, context limit, and adapters, which have a parent."""
        names = {entry["id"] for entry in entries}
        if endpoint.spec.model is not None:
            names.add(endpoint.spec.model)
        limits = [n for entry in entries if type(n := entry.get("max_model_len")) is int]
        self._gateway.fleet.set_context(endpoint, max(limits) if limits else None)
        endpoint.residency.listed([entry["id"] for entry in entries if entry.get("parent")])
        endpoint.candidate.adapters = endpoint.residency.names
        self._gateway.fleet.parents.update({row["id"]: str(row["parent"]) for row in entries if row.get("parent")})
        self._gateway.fleet.set_models(endpoint, frozenset(names))

    def gauges(self, endpoint: Endpoint, found: EngineGauges | None, now: float) -> None:
        """A metrics poll; None is a failed one, after which the last values live until they are stale."""
        if found is None:
            return
        endpoint.metrics_at = now
        candidate = endpoint.candidate
        candidate.kv_utilisation, candidate.waiting = found.kv_utilisation, found.waiting
        if endpoint.spec.adapter_slots is None and found.max_loras is not None:
            candidate.adapter_slots = found.max_loras
        if found.started_at is not None and endpoint.started_at not in (None, found.started_at):
            self._gateway.scheduler.index.clear_slot(candidate.slot)
            if endpoint.follower is not None:
                endpoint.follower.restarted()
        endpoint.started_at = found.started_at
        self._fit_index(endpoint, found.kv_tokens)

    def _fit_index(self, endpoint: Endpoint, kv_tokens: int | None) -> None:
        """Track no more blocks than the engine's cache can hold."""
        bound = self._gateway.settings.index_bytes_per_endpoint
        if kv_tokens is not None and endpoint.spec.model is not None:
            blocks = kv_tokens * self._gateway.estimate.ratio(endpoint.spec.model) / self._gateway.settings.block_bytes
            bound = min(bound, int(blocks * ENTRY_BYTES))
        self._gateway.scheduler.index.add_slot(endpoint.candidate.slot, bound)

    def expire(self, now: float) -> None:
        """Measurements older than the limit become unknown."""
        for endpoint in self._gateway.fleet.by_id.values():
            if endpoint.metrics_at is not None and now - endpoint.metrics_at > self._gateway.settings.metrics_stale_s:
                endpoint.metrics_at = None
                endpoint.candidate.kv_utilisation = endpoint.candidate.waiting = None
