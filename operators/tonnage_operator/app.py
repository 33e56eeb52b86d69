"""The operator as a service: health, readiness, metrics, and the loop within its life."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from fastapi import FastAPI
from kubernetes.client import Configuration
from prometheus_client import CollectorRegistry

from tonnage_operator.actor import Actor, ColdstartCalls, EngineCalls
from tonnage_operator.adapters.kopf_watch import KopfWatch
from tonnage_operator.cluster import Cluster
from tonnage_operator.controller import Controller, Parts
from tonnage_operator.gather import ColdstartPort, EnginePort, Gather, PlannerPort, Sources
from tonnage_operator.kinds import CUSTOM, GPU_PROFILES, POD_MONITORS, SCALED_OBJECTS
from tonnage_operator.leader import Leader, LeaseRules
from tonnage_operator.metrics import OperatorMetrics
from tonnage_operator.queue import WorkQueue
from tonnage_operator.settings import OperatorSettings
from tonnage_runtime.clock import Clock
from tonnage_runtime.http_app import build_base_app
from tonnage_runtime.kube import KubeClient, Object
from tonnage_runtime.kube_reflector import Pace

log = logging.getLogger("tonnage.operator")


class Engines(EnginePort, EngineCalls, Protocol):
    """Engines: what they tell and what they are told."""


class Coldstart(ColdstartPort, ColdstartCalls, Protocol):
    """Cold-start services: what they tell and what they are told."""


@dataclass(frozen=True)
class Ports:
    """The operator's adapters."""

    login: Callable[[], Configuration]
    engines: Engines
    coldstart: Coldstart
    planner: PlannerPort
    clock: Clock
    registry: CollectorRegistry
    pace: Pace | None = None


def lease_rules(settings: OperatorSettings) -> LeaseRules:
    """The lease that the replicas of one installation share."""
    return LeaseRules(
        name=settings.lease_name,
        namespace=settings.namespace,
        identity=settings.identity or socket.gethostname(),
        lasts_s=settings.lease_s,
        renew_s=settings.lease_s / 4,
    )


class Operator:
    """All parts of one process, started and stopped together."""

    def __init__(self, settings: OperatorSettings, ports: Ports) -> None:
        self.metrics = OperatorMetrics(ports.registry)
        self._settings = settings
        self._client = KubeClient(ports.login(), agent="tonnage-operator")
        self._leases = KubeClient(ports.login(), timeout_s=settings.lease_s / 3, agent="tonnage-operator")
        self._leader = Leader(self._leases, lease_rules(settings), ports.clock)
        optional = [POD_MONITORS] * settings.pod_monitors + [SCALED_OBJECTS] * settings.keda
        self.cluster = Cluster(
            self._client,
            namespace=settings.namespace,
            coldstart_selector=settings.coldstart_selector,
            optional=optional,
            changed=self._changed,
            called=lambda call, outcome: self.metrics.watches.labels(call, outcome).inc(),
            pace=ports.pace,
        )
        gather = Gather(
            Sources(
                client=self._client,
                cluster=self.cluster,
                engines=ports.engines,
                coldstart=ports.coldstart,
                planner=ports.planner,
                fleet=settings.fleet(),
                rules=settings.node_rules(),
                coldstart_port=settings.coldstart_port,
                coldstart_scheme="https" if settings.coldstart_tls_name else "http",
            )
        )
        actor = Actor(self._client, ports.engines, ports.coldstart, self.metrics, ports.clock, self.leads)
        parts = Parts(
            client=self._client,
            cluster=self.cluster,
            gather=gather,
            actor=actor,
            metrics=self.metrics,
            clock=ports.clock,
            leads=self.leads,
            resync_s=settings.resync_s,
            workers=settings.workers,
        )
        self.controller = Controller(parts, WorkQueue(ports.clock.monotonic))
        self._watch = KopfWatch(ports.login, self._event)

    def leads(self) -> bool:
        """Whether this process may act."""
        return not self._settings.leader_election or self._leader.held()

    def not_ready(self) -> str | None:
        """Why nothing can be decided; one that waits for the lease is ready to take it."""
        if not self._watch.alive:
            return "the watch of custom resources has ended: see the log"
        return self.cluster.missing()

    def _changed(self, watch: str, item: Object) -> None:
        self.controller.changed(watch, item)

    def _event(self, plural: str, kind: str, item: Object) -> None:
        if plural != GPU_PROFILES.plural:
            put = self.cluster.customs.drop if kind == "DELETED" else self.cluster.customs.put
            put(plural, {"kind": next(one.kind for one in CUSTOM if one.plural == plural), **item})
        self.controller.custom(plural, item)

    async def start(self) -> None:
        """Begin to watch, to ask for the lease and to work."""
        if self._settings.leader_election:
            self._leader.start()
        self.cluster.start()
        self.controller.start()
        self._watch.start()

    async def stop(self) -> None:
        """End work in hand, then watches, then give the lease back: the next one starts from what is there."""
        await asyncio.to_thread(self.controller.stop, self._settings.drain_timeout_s)
        await asyncio.to_thread(self._watch.stop)
        await asyncio.to_thread(self.cluster.stop)
        if self._settings.leader_election:
            await asyncio.to_thread(self._leader.stop)
        self._client.close()
        self._leases.close()


def build_app(settings: OperatorSettings, ports: Ports) -> FastAPI:
    """The service; the loop runs within the app's life."""
    operator = Operator(settings, ports)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await operator.start()
        try:
            yield
        finally:
            await operator.stop()

    app = build_base_app("Tonnage operator", ports.registry, not_ready=operator.not_ready, lifespan=lifespan)
    app.state.operator = operator
    return app
