"""The fleet's own status page: which children live, how often each was restarted, and every URL."""

from collections.abc import Callable, Iterator, Mapping

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tonnage_cli.fleet.supervisor import Child, Supervisor
from tonnage_runtime.http_app import build_base_app
from tonnage_runtime.metrics import new_registry


class FleetCollector:
    """Children as metrics, read at scrape time."""

    def __init__(self, children: Mapping[str, Child]) -> None:
        self._children = children

    def collect(self) -> Iterator[Metric]:
        """Readiness and restarts of each child."""
        ready = GaugeMetricFamily("tonnage_fleet_process_ready", "1 when the child answers ready", labels=["process"])
        restarts = CounterMetricFamily(
            "tonnage_fleet_process_restarts", "Times the child died and was started again", labels=["process"]
        )
        for name, child in self._children.items():
            ready.add_metric([name], float(child.state == "ready"))
            restarts.add_metric([name], child.restarts)
        yield ready
        yield restarts


def fleet_registry(children: Mapping[str, Child]) -> CollectorRegistry:
    """A registry with the fleet's own series."""
    registry = new_registry()
    registry.register(FleetCollector(children))
    return registry


def build_app(
    supervisor: Supervisor, urls: Mapping[str, object], standing: Callable[[], Mapping[str, object] | None]
) -> FastAPI:
    """`/` lists children and URLs and says how far the replay is; `/readyz` names the children that are not ready."""

    def not_ready() -> str | None:
        late = [f"{name} is {child.state}" for name, child in supervisor.children.items() if child.state != "ready"]
        return ", ".join(late) or None

    app = build_base_app("Tonnage local fleet", fleet_registry(supervisor.children), not_ready=not_ready)

    @app.get("/", tags=["fleet"])
    async def fleet() -> dict[str, object]:
        """The children of this fleet and its URLs."""
        processes = [
            {"name": name, "state": child.state, "pid": child.pid, "restarts": child.restarts, "url": child.spec.url}
            for name, child in supervisor.children.items()
        ]
        return {"schema": "tonnage.fleet/1", "processes": processes, "urls": dict(urls), "replay": standing()}

    return app
