"""The hooks' servers, for as long as the planner runs; each is off unless its port is set."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tonnage_planner.fleet import Fleet
from tonnage_planner.hooks.desired import DesiredReplicas
from tonnage_planner.hooks.external_metrics import build_external_metrics
from tonnage_planner.metrics import PlannerMetrics
from tonnage_planner.settings import PlannerSettings
from tonnage_runtime.clock import Clock
from tonnage_runtime.errors import SettingsError
from tonnage_runtime.http_app import bind, serve
from tonnage_runtime.tls import Tls

STALE_AFTER_TICKS = 15
"""A target is unknown once this many decisions in a row did not come."""


@contextlib.asynccontextmanager
async def serve_hooks(
    settings: PlannerSettings, fleet: Fleet, clock: Clock, metrics: PlannerMetrics
) -> AsyncIterator[None]:
    """Serve the hooks that have a port; raises `SettingsError` for a port that is taken or half a certificate."""
    stale_after_s = max(30.0, STALE_AFTER_TICKS * settings.scrape_interval_s)
    desired = DesiredReplicas(fleet, clock.monotonic, stale_after_s)
    async with contextlib.AsyncExitStack() as stack:
        if settings.keda_port is not None:
            # grpc is loaded only where it is served: a planner without KEDA needs neither its time nor its memory.
            from tonnage_planner.hooks.keda import KedaScaler, serve_keda

            metrics.expect_calls("keda", ("IsActive", "GetMetricSpec", "GetMetrics"))
            scaler = KedaScaler(desired, lambda call, outcome: metrics.hook_calls.labels("keda", call, outcome).inc())
            tls = settings.tls if settings.keda_tls else None
            await stack.enter_async_context(
                serve_keda(scaler, settings.host, settings.keda_port, grace_s=settings.drain_timeout_s, tls=tls)
            )
        if settings.external_metrics_port is not None:
            await stack.enter_async_context(_external_metrics(settings, desired, clock))
        yield


@contextlib.asynccontextmanager
async def _external_metrics(settings: PlannerSettings, desired: DesiredReplicas, clock: Clock) -> AsyncIterator[None]:
    sock = bind(settings.host, settings.external_metrics_port or 0)
    stop = asyncio.Event()
    app = build_external_metrics(desired, clock)
    serving = asyncio.create_task(
        serve(app, sock, drain_timeout_s=settings.drain_timeout_s, stop=stop, tls=tls_of(settings))
    )
    try:
        yield
    finally:
        stop.set()
        await serving


def tls_of(settings: PlannerSettings) -> Tls | None:
    """The certificate of the external metrics port; raises `SettingsError` when only a part of it is given."""
    cert, key, client_ca = (
        settings.external_metrics_cert,
        settings.external_metrics_key,
        settings.external_metrics_client_ca,
    )
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None or client_ca is None:
        raise SettingsError(
            "external metrics: give external_metrics_cert, external_metrics_key and external_metrics_client_ca together"
        )
    return Tls(str(cert), str(key), str(client_ca))
