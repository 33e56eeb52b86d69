"""The external scaler, asked in KEDA's order over real gRPC on loopback."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from tonnage_core.autoscaling.signals import Load
from tonnage_core.autoscaling.state_machine import Decision
from tonnage_planner.fleet import Decided, Fleet
from tonnage_planner.hooks.desired import METRIC, DesiredReplicas
from tonnage_planner.hooks.keda import KedaScaler, serve_keda
from tonnage_planner.hooks.keda_messages import SERVICE, message_classes
from tonnage_planner.settings import PlannerSettings
from tonnage_runtime.errors import SettingsError

MESSAGES = message_classes()


class World:
    """A fleet whose targets a test sets, and the clock they age by."""

    def __init__(self) -> None:
        self.fleet = Fleet(PlannerSettings())
        self.now_s = 100.0
        self.calls: list[tuple[str, str]] = []
        self.desired = DesiredReplicas(self.fleet, lambda: self.now_s, stale_after_s=30.0)

    def decide(self, pool: str, target: int) -> None:
        """A decision of now."""
        decision = Decision(target, None, None, (), (), Load({}, None, None))
        self.fleet.decided[pool] = Decided(decision, None, self.now_s)


class Keda:
    """The calls KEDA makes of one ScaledObject."""

    def __init__(self, channel: Any, metadata: dict[str, str]) -> None:
        self._channel = channel
        self.reference = MESSAGES["ScaledObjectRef"](name="so", namespace="serving", scalerMetadata=metadata)

    async def _ask(self, method: str, request: Any, reply: str) -> Any:
        call = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=MESSAGES[reply].FromString,
        )
        return await call(request, timeout=5)

    async def spec(self) -> Any:
        """Once, before the HPA is made."""
        return (await self._ask("GetMetricSpec", self.reference, "GetMetricSpecResponse")).metricSpecs[0]

    async def value(self, name: str) -> Any:
        """Each poll: the value, under the name the spec gave."""
        request = MESSAGES["GetMetricsRequest"](scaledObjectRef=self.reference, metricName=name)
        return (await self._ask("GetMetrics", request, "GetMetricsResponse")).metricValues[0]

    async def active(self) -> bool:
        """Each poll: whether there should be any replica."""
        return bool((await self._ask("IsActive", self.reference, "IsActiveResponse")).result)

    def stream(self) -> Any:
        """The push trigger's stream."""
        call = self._channel.unary_stream(
            f"/{SERVICE}/StreamIsActive",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=MESSAGES["IsActiveResponse"].FromString,
        )
        return call(self.reference, timeout=20)


@pytest.fixture
async def world() -> World:
    return World()


@pytest.fixture
async def channel(world: World) -> AsyncIterator[Any]:
    scaler = KedaScaler(world.desired, lambda call, outcome: world.calls.append((call, outcome)), poll_s=0.01)
    async with (
        serve_keda(scaler, "127.0.0.1", 0, grace_s=0.1) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield channel


async def failure(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    code: grpc.StatusCode = caught.value.code()
    return code


async def test_a_poll_reads_the_spec_then_the_value_and_the_activity(world: World, channel: Any) -> None:
    world.decide("llama", 7)
    keda = Keda(channel, {"pool": "llama", "scalerAddress": "x"})
    spec = await keda.spec()
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == (METRIC, 1, 1.0)
    for _ in range(2):
        value = await keda.value(spec.metricName)
        assert (value.metricName, value.metricValue, value.metricValueFloat) == (METRIC, 7, 7.0)
        assert await keda.active()
    assert world.calls.count(("GetMetrics", "ok")) == 2


async def test_zero_is_zero_in_both_fields_and_inactive(world: World, channel: Any) -> None:
    world.decide("llama", 0)
    keda = Keda(channel, {"pool": "llama"})
    value = await keda.value(METRIC)
    assert (value.metricValue, value.metricValueFloat) == (0, 0.0)
    assert not await keda.active()


async def test_unknown_is_unavailable_and_never_zero(world: World, channel: Any) -> None:
    keda = Keda(channel, {"pool": "llama"})
    assert (await keda.spec()).metricName == METRIC, "without a spec KEDA would make an HPA on CPU"
    assert await failure(keda.value(METRIC)) is grpc.StatusCode.UNAVAILABLE
    assert await failure(keda.active()) is grpc.StatusCode.UNAVAILABLE
    world.decide("llama", 3)
    assert (await keda.value(METRIC)).metricValue == 3
    world.now_s += 31
    assert await failure(keda.value(METRIC)) is grpc.StatusCode.UNAVAILABLE
    assert ("GetMetrics", "unavailable") in world.calls


async def test_what_is_asked_wrongly_is_an_invalid_argument(world: World, channel: Any) -> None:
    world.decide("llama", 3)
    assert await failure(Keda(channel, {}).spec()) is grpc.StatusCode.INVALID_ARGUMENT
    assert await failure(Keda(channel, {"pool": "llama"}).value("s0-other")) is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_stream_tells_the_state_when_it_opens_and_each_change(world: World, channel: Any) -> None:
    world.decide("llama", 0)
    stream = Keda(channel, {"pool": "llama"}).stream()
    assert (await stream.read()).result is False
    await asyncio.sleep(0.1)
    world.decide("llama", 2)
    assert (await stream.read()).result is True, "a state is not told again while it lasts"
    world.decide("llama", 5)
    world.decide("llama", 0)
    assert (await stream.read()).result is False
    stream.cancel()


async def test_a_pool_of_a_namespace_is_looked_up_first(world: World, channel: Any) -> None:
    world.decide("llama", 1)
    world.decide("serving/llama", 4)
    assert (await Keda(channel, {"pool": "llama"}).value(METRIC)).metricValue == 4


async def test_metric_specs_are_not_streamed_and_keda_falls_back(channel: Any) -> None:
    call = channel.unary_stream(f"/{SERVICE}/StreamMetricSpec")(b"")
    assert await failure(call.read()) is grpc.StatusCode.UNIMPLEMENTED


async def test_a_stream_is_counted_by_what_it_tells_and_ends_when_nothing_is_known(world: World, channel: Any) -> None:
    world.decide("llama", 2)
    stream = Keda(channel, {"pool": "llama"}).stream()
    assert (await stream.read()).result is True
    world.decide("llama", 0)
    assert (await stream.read()).result is False
    assert world.calls.count(("StreamIsActive", "ok")) == 2
    world.now_s += 31
    assert await failure(stream.read()) is grpc.StatusCode.UNAVAILABLE
    assert world.calls[-1] == ("StreamIsActive", "unavailable")


async def test_open_streams_do_not_hold_a_planner_that_stops(world: World) -> None:
    world.decide("llama", 2)
    serving = serve_keda(KedaScaler(world.desired, lambda call, outcome: None), "127.0.0.1", 0, grace_s=600)
    port = await serving.__aenter__()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        streams = [Keda(channel, {"pool": "llama"}).stream() for _ in range(3)]
        for stream in streams:
            assert (await stream.read()).result is True
        async with asyncio.timeout(60):
            await serving.__aexit__(None, None, None)
        for stream in streams:
            assert await failure(stream.read()) is grpc.StatusCode.UNAVAILABLE


async def test_a_port_of_another_planner_is_refused(world: World) -> None:
    first = KedaScaler(world.desired, lambda call, outcome: None)
    async with serve_keda(first, "127.0.0.1", 0, grace_s=0.1) as port:
        with pytest.raises(SettingsError, match="choose another keda_port"):
            async with serve_keda(first, "127.0.0.1", port, grace_s=0.1):
                pass


async def test_an_address_of_ipv6_is_listened_on(world: World) -> None:
    scaler = KedaScaler(world.desired, lambda call, outcome: None)
    world.decide("llama", 2)
    async with (
        serve_keda(scaler, "::", 0, grace_s=0.1) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        assert await Keda(channel, {"pool": "llama"}).active()


async def test_several_scaled_objects_are_told_their_own_pool(world: World, channel: Any) -> None:
    for number in range(20):
        world.decide(f"pool-{number}", number)
    asked = [Keda(channel, {"pool": f"pool-{number}"}).value(METRIC) for number in range(20)]
    asked.append(Keda(channel, {"pool": "pool-20"}).value(METRIC))
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [getattr(one, "metricValue", None) for one in found[:20]] == list(range(20))
    assert isinstance(found[20], grpc.aio.AioRpcError)
    assert found[20].code() is grpc.StatusCode.UNAVAILABLE
