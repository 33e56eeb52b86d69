"""The external metrics API, asked as an HPA's client asks: discovery and values by the `kubernetes` client."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes.client import ApiClient, ApisApi, Configuration, CustomObjectsApi
from kubernetes.client.exceptions import ApiException

from tonnage_core.autoscaling.signals import Load
from tonnage_core.autoscaling.state_machine import Decision
from tonnage_core.errors import TonnageError
from tonnage_planner.fleet import Decided, Fleet
from tonnage_planner.hooks.desired import METRIC, DesiredReplicas
from tonnage_planner.hooks.external_metrics import GROUP, VERSION, build_external_metrics, selected
from tonnage_planner.hooks.serving import tls_of
from tonnage_planner.settings import PlannerSettings
from tonnage_runtime.clock import ManualClock
from tonnage_runtime.http_app import bind, serve


class Cluster:
    """The served API and a client of it."""

    def __init__(self, fleet: Fleet, clock: ManualClock, port: int) -> None:
        self.fleet, self.clock = fleet, clock
        configuration = Configuration(host=f"http://127.0.0.1:{port}")
        configuration.retries = False
        self.api = ApiClient(configuration)

    def decide(self, pool: str, target: int) -> None:
        """A decision of now."""
        decision = Decision(target, None, None, (), (), Load({}, None, None))
        self.fleet.decided[pool] = Decided(decision, None, self.clock.monotonic())

    async def values(self, selector: str, metric: str = METRIC) -> list[dict[str, object]]:
        """What an HPA adds up."""

        def ask() -> list[dict[str, object]]:
            found: Any = CustomObjectsApi(self.api).list_namespaced_custom_object(
                GROUP, VERSION, "serving", metric, label_selector=selector
            )
            assert found["kind"] == "ExternalMetricValueList"
            items: list[dict[str, object]] = found["items"]
            return items

        return await asyncio.to_thread(ask)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    fleet, clock, stop = Fleet(PlannerSettings()), ManualClock(1_800_000_000.0), asyncio.Event()
    sock = bind("127.0.0.1", 0)
    app = build_external_metrics(DesiredReplicas(fleet, clock.monotonic, 30.0), clock)
    serving = asyncio.create_task(serve(app, sock, drain_timeout_s=1, stop=stop))
    found = Cluster(fleet, clock, sock.getsockname()[1])
    yield found
    found.api.rest_client.close()
    stop.set()
    await serving


async def test_discovery_names_the_group_and_the_metric(cluster: Cluster) -> None:
    groups = await asyncio.to_thread(ApisApi(cluster.api).get_api_versions)
    assert [group.name for group in groups.groups] == [GROUP]
    preferred = groups.groups[0].preferred_version
    assert preferred is not None
    assert preferred.group_version == f"{GROUP}/{VERSION}"
    resources = await asyncio.to_thread(CustomObjectsApi(cluster.api).get_api_resources, GROUP, VERSION)
    (resource,) = resources.resources
    assert (resource.name, resource.verbs, resource.namespaced) == (METRIC, ["get"], True)


async def test_a_value_is_a_quantity_with_its_labels_and_time(cluster: Cluster) -> None:
    cluster.decide("llama", 21)
    cluster.decide("qwen", 2)
    (item,) = await cluster.values("pool=llama")
    assert (item["metricName"], item["metricLabels"], item["value"]) == (METRIC, {"pool": "llama"}, "21")
    assert item["timestamp"] == "2027-01-15T08:00:00Z"
    assert len(await cluster.values("")) == 2


async def test_no_match_is_an_empty_list_and_failure_is_an_error(cluster: Cluster) -> None:
    cluster.decide("llama", 3)
    assert await cluster.values("pool=other") == []
    cluster.clock.advance(31)
    for selector, metric, status in (
        ("pool=llama", METRIC, 503),
        ("pool=llama", "other", 404),
        ("app=x", METRIC, 400),
    ):
        with pytest.raises(ApiException) as caught:
            await cluster.values(selector, metric)
        assert caught.value.status == status
        assert '"kind":"Status"' in str(caught.value.body)


def test_selectors_take_equality_and_sets() -> None:
    pools = ("a", "b", "c")
    assert selected("pool in (a, c)", pools) == ("a", "c")
    assert selected("pool==b", pools) == ("b",)
    for wrong in ("pool!=a", "pool=a,app=x", "pool=", "pool"):
        with pytest.raises(ValueError, match="pool=NAME"):
            selected(wrong, pools)


def test_half_a_certificate_is_refused() -> None:
    assert tls_of(PlannerSettings()) is None
    with pytest.raises(TonnageError, match="together"):
        tls_of(PlannerSettings.model_validate({"external_metrics_cert": "a.pem"}))
