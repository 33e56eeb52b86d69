"""KEDA's external scaler over gRPC.

KEDA reads the spec once, then at every poll asks for the value and whether the pool is active; a push trigger keeps a
stream of the latter open. Both number fields are filled: old KEDA reads the whole number, new the fraction when it is
above 0. What is not known is UNAVAILABLE, which KEDA treats as a failed trigger, and never 0, which it would obey.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from tonnage_planner.hooks.desired import METRIC, DesiredReplicas, UnknownTargetError
from tonnage_planner.hooks.keda_messages import SERVICE, message_classes
from tonnage_runtime.errors import SettingsError
from tonnage_runtime.tls import Tls, server_context

Context = Any
"""grpc.aio.ServicerContext: grpc ships no types."""


class KedaScaler:
    """Answers from the targets; `poll_s` is how soon a stream sees a change."""

    def __init__(self, desired: DesiredReplicas, count: Callable[[str, str], None], *, poll_s: float = 0.5) -> None:
        self._desired = desired
        self._count = count
        self._poll_s = poll_s
        self._messages = message_classes()
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End the open streams, which would last as long as KEDA does; KEDA opens them again elsewhere."""
        self._closing.set()

    async def is_active(self, reference: Any, context: Context) -> Any:
        """True when the pool should have replicas: KEDA goes from and to zero by this alone."""
        target = await self._target("IsActive", reference, context)
        return self._messages["IsActiveResponse"](result=target > 0)

    async def stream_is_active(self, reference: Any, context: Context) -> AsyncIterator[Any]:
        """The state when the stream opens, and each change of it."""
        sent: bool | None = None
        while not self._closing.is_set():
            active = await self._target("StreamIsActive", reference, context, counted=False) > 0
            if active is not sent:
                self._count("StreamIsActive", "ok")
                yield self._messages["IsActiveResponse"](result=active)
                sent = active
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), self._poll_s)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the planner is stopping: open the stream again")

    async def get_metric_spec(self, reference: Any, context: Context) -> Any:
        """The one metric and its target a replica; answered before a target is known, or KEDA would make a bad HPA."""
        await self._pool(reference, context)
        spec = self._messages["MetricSpec"](metricName=METRIC, targetSize=1, targetSizeFloat=1.0)
        self._count("GetMetricSpec", "ok")
        return self._messages["GetMetricSpecResponse"](metricSpecs=[spec])

    async def get_metrics(self, request: Any, context: Context) -> Any:
        """The pool's desired replicas."""
        if request.metricName != METRIC:
            self._count("GetMetrics", "invalid")
            text = f"metric {request.metricName!r}: this scaler has {METRIC}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        target = await self._target("GetMetrics", request.scaledObjectRef, context)
        value = self._messages["MetricValue"](metricName=METRIC, metricValue=target, metricValueFloat=float(target))
        return self._messages["GetMetricsResponse"](metricValues=[value])

    async def _pool(self, reference: Any, context: Context) -> str:
        pool = str(reference.scalerMetadata.get("pool", ""))
        if not pool:
            text = f"ScaledObject {reference.namespace}/{reference.name}: its trigger's metadata has no `pool`"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        return pool

    async def _target(self, call: str, reference: Any, context: Context, *, counted: bool = True) -> int:
        pool = await self._pool(reference, context)
        try:
            target = self._desired.of(pool, str(reference.namespace))
        except UnknownTargetError as error:
            self._count(call, "unavailable")
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise
        if counted:
            self._count(call, "ok")
        return target

    def handlers(self) -> Any:
        """The service's methods by name."""
        messages = self._messages

        def unary(method: Callable[[Any, Context], Awaitable[Any]], request: str) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                method, messages[request].FromString, lambda reply: reply.SerializeToString()
            )

        methods = {
            "IsActive": unary(self.is_active, "ScaledObjectRef"),
            "GetMetricSpec": unary(self.get_metric_spec, "ScaledObjectRef"),
            "GetMetrics": unary(self.get_metrics, "GetMetricsRequest"),
            "StreamIsActive": grpc.unary_stream_rpc_method_handler(
                self.stream_is_active, messages["ScaledObjectRef"].FromString, lambda reply: reply.SerializeToString()
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)


def _followed(tls: Tls) -> Any:
    """gRPC's credentials of `tls`, which it asks for at every handshake. Raises `SettingsError`."""
    server_context(tls)  # says what is wrong with the files, where gRPC says nothing
    known = tls.stamp()

    def pair() -> Any:
        key, chain = Path(tls.key).read_bytes(), Path(tls.cert).read_bytes()
        return grpc.ssl_server_certificate_configuration([(key, chain)])

    def renewed() -> Any:
        nonlocal known
        try:
            if (now := tls.stamp()) == known:
                return None
            server_context(tls)  # half of a pair, or no certificate: the one before stays
            made, known = pair(), now
        except (OSError, SettingsError):
            return None
        return made

    return grpc.dynamic_ssl_server_credentials(pair(), renewed)


@contextlib.asynccontextmanager
async def serve_keda(
    scaler: KedaScaler, host: str, port: int, *, grace_s: float, tls: Tls | None = None
) -> AsyncIterator[int]:
    """The gRPC server for as long as the block runs; gives its port. Raises `SettingsError` for one that is taken."""
    # Else a second planner on this port would get every other call, and nobody would know.
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((scaler.handlers(),))
    try:
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        bound = server.add_insecure_port(address) if tls is None else server.add_secure_port(address, _followed(tls))
    except RuntimeError as error:
        raise SettingsError(f"KEDA scaler: cannot listen on {host}:{port}: choose another keda_port") from error
    await server.start()
    try:
        yield bound
    finally:
        scaler.close()
        await server.stop(grace_s)
