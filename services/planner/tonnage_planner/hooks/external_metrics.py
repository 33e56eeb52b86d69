"""The external metrics API (`external.metrics.k8s.io/v1beta1`): what an HPA asks for, without KEDA.

A cluster has one such API, so it is off unless its port is set. An HPA reads the discovery list, then
`/namespaces/{namespace}/{metric}?labelSelector=…`, and adds the items up. A selector that matches no pool gives an
empty list; a target that is not known is an error, never an item of zero.
"""

from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from tonnage_planner.hooks.desired import METRIC, DesiredReplicas, UnknownTargetError
from tonnage_runtime.clock import Clock

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
GROUP_VERSION = f"{GROUP}/{VERSION}"
ROOT = f"/apis/{GROUP_VERSION}"


def build_external_metrics(desired: DesiredReplicas, clock: Clock) -> FastAPI:
    """The API as an app of its own: its port has its own certificate and its own clients."""
    app = FastAPI(title="Tonnage external metrics", openapi_url=None, docs_url=None, redoc_url=None)
    version = {"groupVersion": GROUP_VERSION, "version": VERSION}
    group = {"name": GROUP, "versions": [version], "preferredVersion": version}

    # Clients ask with and without the last slash, and do not follow redirects.
    @app.get("/apis")
    @app.get("/apis/")
    async def groups() -> dict[str, Any]:
        """The API groups: this one."""
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}

    @app.get(f"/apis/{GROUP}")
    @app.get(f"/apis/{GROUP}/")
    async def api_group() -> dict[str, Any]:
        """The group's versions."""
        return {"kind": "APIGroup", "apiVersion": "v1", **group}

    @app.get(ROOT)
    @app.get(ROOT + "/")
    async def resources() -> dict[str, Any]:
        """The metrics there are."""
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": GROUP_VERSION,
            "resources": [_resource()],
        }

    @app.get(ROOT + "/namespaces/{namespace}/{metric}")
    async def values(namespace: str, metric: str, labelSelector: str = "") -> JSONResponse:  # noqa: N803 - the API's name
        """The metric's values for the pools that the selector takes."""
        if metric != METRIC:
            return _status(404, "NotFound", f"no metric {metric!r}: this API has {METRIC}")
        try:
            chosen = selected(labelSelector, desired.pools())
            stamp = datetime.fromtimestamp(clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            items = [_item(pool, desired.of(pool, namespace), stamp) for pool in chosen]
        except SelectorError as error:
            return _status(400, "BadRequest", str(error))
        except UnknownTargetError as error:
            return _status(503, "ServiceUnavailable", str(error))
        return JSONResponse(
            {"kind": "ExternalMetricValueList", "apiVersion": GROUP_VERSION, "metadata": {}, "items": items}
        )

    return app


class SelectorError(ValueError):
    """A label selector that is not understood: answering as if it matched nothing would scale to nothing."""


def selected(selector: str, pools: tuple[str, ...]) -> tuple[str, ...]:
    """The pools that `selector` takes: `pool=a`, `pool==a`, `pool in (a,b)`; empty takes all."""
    text = selector.strip()
    if not text:
        return pools
    label, _, rest = text.partition(" in ")
    if rest and label.strip() == "pool" and rest.strip().startswith("(") and rest.strip().endswith(")"):
        wanted = {name.strip() for name in rest.strip()[1:-1].split(",")}
        return tuple(pool for pool in pools if pool in wanted)
    label, _, value = text.replace("==", "=", 1).partition("=")
    if label.strip() != "pool" or not value or "," in value:
        raise SelectorError(f"label selector {selector!r}: use pool=NAME or pool in (NAME, …)")
    return tuple(pool for pool in pools if pool == value.strip())


def _resource() -> dict[str, Any]:
    return {
        "name": METRIC,
        "singularName": "",
        "namespaced": True,
        "kind": "ExternalMetricValueList",
        "verbs": ["get"],
    }


def _item(pool: str, value: int, stamp: str) -> dict[str, Any]:
    return {"metricName": METRIC, "metricLabels": {"pool": pool}, "timestamp": stamp, "value": str(value)}


def _status(code: int, reason: str, message: str) -> JSONResponse:
    """A Kubernetes Status object, which clients turn into an error."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return JSONResponse(body, status_code=code)
