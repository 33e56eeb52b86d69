"""Health, version, models, load and metrics."""

from prometheus_client import CollectorRegistry

from tonnage_runtime.metrics import exposition
from tonnage_sim.api.service import Service
from tonnage_sim.engine.observer import Observer
from tonnage_sim.http1.exchange import Exchange
from tonnage_sim.http1.message import Request, Response, json_response
from tonnage_sim.metric_types import Families

VLLM_VERSION = "0.32.0"
"""The engine whose API this is."""


class Basic:
    """The handlers."""

    def __init__(self, service: Service, registry: CollectorRegistry, families: Families, observer: Observer) -> None:
        """`registry` has the process's series, `families` the engine's."""
        self._service = service
        self._registry = registry
        self._families = families
        self._observer = observer
        self._stale: Response | None = None

    async def health(self, _: Request, __: Exchange) -> Response:
        """The engine is alive."""
        return Response(200)

    async def version(self, _: Request, __: Exchange) -> Response:
        """The vLLM version whose API this is."""
        return json_response({"version": VLLM_VERSION})

    async def load(self, _: Request, __: Exchange) -> Response:
        """vLLM counts this only when told to; so 0."""
        return json_response({"server_load": 0})

    async def models(self, _: Request, __: Exchange) -> Response:
        """The base model and its adapters."""
        return json_response(self._service.models.listed(self._service.created()))

    async def metrics(self, request: Request, __: Exchange) -> Response:
        """Prometheus exposition, unless a fault says otherwise."""
        faults = self._service.faults
        error = faults.get("metrics_error")
        if error is not None:
            return Response(error.status, b"injected fault", "text/plain; charset=utf-8")
        if faults.get("metrics_stale") is None:
            self._stale = None
            return self._scrape()
        if self._stale is None:
            self._stale = self._scrape()
        return self._stale

    def freeze(self) -> None:
        """Keep what /metrics says now, for as long as the metrics_stale fault is in force."""
        self._stale = self._scrape()

    def _scrape(self) -> Response:
        self._observer.gauges(self._service.loop.stats, self._service.clock.wall())
        process, content_type = exposition(self._registry, "")
        return Response(200, process + self._families.render().encode(), content_type)
