"""Endpoints of a Kubernetes cluster, by list and watch in threads: engine pods, a Service's EndpointSlices, or the pods
of an InferencePool.

Imported only where a cluster is watched, since the API client is large.
"""

import asyncio
import logging
from collections.abc import Callable

from tonnage_router.adapters.kube_objects import (
    NOT_READY,
    SERVICE_LABEL,
    TERMINATING,
    Found,
    Row,
    of_pods,
    of_pool,
    of_slices,
)
from tonnage_router.discovery import reconcile
from tonnage_router.gateway import Gateway
from tonnage_runtime.kube import KubeClient, Resource, configuration
from tonnage_runtime.kube_reflector import Pace, Reflector

log = logging.getLogger(__name__)
AGENT = "tonnage-router"


class KubeDiscovery:
    """Keeps the fleet equal to what the cluster says. Without an answer of the API the last known fleet stays."""

    def __init__(self, gateway: Gateway, followed: Callable[[], None], pace: Pace | None = None) -> None:
        settings = gateway.settings
        self._gateway, self._followed = gateway, followed
        self._client = KubeClient(configuration(settings.kubeconfig), agent=AGENT)
        self._pace = pace or Pace(relist_s=settings.kubernetes_relist_s)
        space = settings.kubernetes_namespace
        # A pool's own selector says which pods are meant, and may change: all are watched.
        selector = "" if settings.kubernetes_inference_pool else settings.kubernetes_selector
        self._pods = self._reflector(Resource("", "v1", "pods", "Pod", space), selector)
        self._slices: Reflector | None = None
        self._pools: Reflector | None = None
        if settings.kubernetes_inference_pool:
            pools = Resource("inference.networking.k8s.io", "v1", "inferencepools", "InferencePool", space)
            self._pools = self._reflector(pools, "")
        elif settings.kubernetes_service:
            slices = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", space)
            self._slices = self._reflector(slices, f"{SERVICE_LABEL}={settings.kubernetes_service}")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = False
        self._owned: set[str] = set()
        self._told: set[Row] = set()

    def start(self) -> None:
        """Begin to watch; the fleet follows on the running event loop."""
        self._loop = asyncio.get_running_loop()
        for reflector in self._reflectors:
            reflector.start()

    async def stop(self) -> None:
        """End the watches."""
        for reflector in self._reflectors:
            await asyncio.to_thread(reflector.stop)
        self._client.close()

    @property
    def _reflectors(self) -> list[Reflector]:
        return [each for each in (self._pods, self._slices, self._pools) if each is not None]

    def _reflector(self, resource: Resource, selector: str) -> Reflector:
        calls = self._gateway.metrics.discovery_calls

        def called(call: str, outcome: str) -> None:
            key = (resource.plural, call, outcome)
            calls[key] = calls.get(key, 0) + 1

        return Reflector(self._client, resource, selector, changed=self._changed, called=called, pace=self._pace)

    def _changed(self) -> None:
        """From a reflector's thread: look once, however many changes came."""
        assert self._loop is not None
        if not self._due and not self._loop.is_closed():
            self._due = True
            self._loop.call_soon_threadsafe(self._apply)

    def _apply(self) -> None:
        self._due = False
        rows = self._rows()
        if rows is None:
            return
        self._tell({row for row in rows if not isinstance(row, Found)})
        found = [row for row in rows if isinstance(row, Found)]
        self._owned = reconcile(self._gateway, [row.spec for row in found], self._owned)
        fleet = self._gateway.fleet
        for row in found:
            endpoint = fleet.by_id.get(row.spec.id or "")
            if endpoint is not None:
                for cause in (TERMINATING, NOT_READY):
                    fleet.set_drained(endpoint, cause, drained=cause in row.causes)
        self._followed()
        self._gateway.admission.room_freed()

    def _rows(self) -> list[Row] | None:
        """None until everything that is watched was listed once."""
        settings, pods = self._gateway.settings, self._pods.objects
        if pods is None:
            return None
        if self._pools is not None:
            pools, name = self._pools.objects, settings.kubernetes_inference_pool
            return None if pools is None else of_pool(pools.get(name), name, pods.values())
        if self._slices is not None:
            slices = self._slices.objects
            return None if slices is None else of_slices(slices.values(), pods, settings.kubernetes_port)
        return of_pods(pods.values(), settings.kubernetes_port)

    def _tell(self, unreadable: set[Row]) -> None:
        """Log each problem once, when it appears."""
        for row in unreadable - self._told:
            if not isinstance(row, Found):
                log.warning("not taken as it is", extra={"endpoint": row.name, "problem": row.why})
        self._told = unreadable
