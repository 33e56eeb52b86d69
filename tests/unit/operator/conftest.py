"""A mock cluster for the operator: kmock with what it leaves out of writes (server-side apply, versions, `scale`), and
stand-ins for engines, cold-start services and the planner."""

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp.web
import pytest
from kmock import KubernetesEmulator, ResourceInfo, Server, resource
from kubernetes.client import Configuration
from prometheus_client import CollectorRegistry

from tests.merge_patch import merge
from tonnage_operator import kinds, times
from tonnage_operator.actions import EngineCall, PinCall, StageCall
from tonnage_operator.adapters.http import CallError
from tonnage_operator.app import Operator, Ports
from tonnage_operator.model_server.target import Advice
from tonnage_operator.nodes import NodeView, Snapshot
from tonnage_operator.pods import EngineView
from tonnage_operator.settings import OperatorSettings
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.kube import APPLY, MERGE, Resource
from tonnage_runtime.kube_reflector import Pace

Body = dict[str, Any]
ALL = (*kinds.CUSTOM, *kinds.CHILDREN, *kinds.SCALERS, kinds.PODS, kinds.NODES, kinds.LEASES)
# kopf waits until discovery names these two.
SERVED = (
    Resource("", "v1", "namespaces", "Namespace"),
    Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"),
)
CLUSTER_SCOPED = {"gpuprofiles", "nodes", "namespaces", "customresourcedefinitions"}


@dataclass(frozen=True)
class Call:
    """A write as it came."""

    method: str
    content_type: str
    plural: str
    namespace: str
    name: str
    subresource: str
    manager: str
    force: str
    body: Body


@dataclass
class Script:
    """Answers for the next requests that fit."""

    method: str
    path: str
    status: int
    times: int
    headers: Mapping[str, str] = field(default_factory=dict)


def ref(kind: Resource) -> Any:
    return resource(kind.group, kind.version, kind.plural)


def without(old: Any, gone: Any, kept: Any) -> Any:
    """`old` without the fields that `gone` said and `kept` does not say any more."""
    if not isinstance(old, dict) or not isinstance(gone, dict):
        return old
    made = {}
    for key, value in old.items():
        if key in gone and key not in (kept or {}):
            nested = isinstance(value, dict) and isinstance(gone[key], dict)
            if nested and (rest := without(value, gone[key], {})):
                made[key] = rest
            continue
        made[key] = without(value, gone.get(key), (kept or {}).get(key)) if key in gone else value
    return made


Emulator: Any = KubernetesEmulator
"""Any: the emulator's payloads are typed as anything that can be sent."""


class ApiServer(Emulator):  # type: ignore[misc]
    """kmock with writes as an API server does them."""

    def prepare(self) -> None:
        self.calls: list[Call] = []
        self.scripts: list[Script] = []
        self.said: dict[Any, Body] = {}
        self.numbers = itertools.count(1)
        for kind in (*ALL, *SERVED):
            self.resources[ref(kind)] = ResourceInfo(
                kind=kind.kind,
                namespaced=kind.plural not in CLUSTER_SCOPED,
                verbs={"list", "watch", "get", "patch", "create", "delete"},
                subresources={"status"} if kind in kinds.CUSTOM else set(),
            )

    def script(self, method: str, path: str, status: int, times: int = 1, **headers: str) -> None:
        """Answer the next `times` requests whose path fits with `status`."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self.scripts.append(Script(method, path, status, times, given))

    def applied(self, plural: str, name: str = "", subresource: str = "") -> list[Call]:
        """The applies of a kind, in order."""
        return [
            call
            for call in self.calls
            if (call.plural, call.subresource) == (plural, subresource)
            and call.content_type == APPLY
            and name in ("", call.name)
        ]

    def body(self, kind: Resource, name: str, namespace: str = "serving") -> Body | None:
        """The object as it is; None when it is not there."""
        scope = None if kind.plural in CLUSTER_SCOPED else namespace
        key = (ref(kind), scope, name)
        found = self.objects[key] if key in self.objects else None  # noqa: SIM401 - it has no `get`
        return None if found is None or found.deleted else found.raw

    def names(self, kind: Resource) -> list[str]:
        """Names of all objects of a kind."""
        return sorted(n for (r, _, n), o in self.objects.items() if r == ref(kind) and not o.deleted)

    async def put(self, kind: Resource, body: Body) -> None:
        """Someone else's write: a merge, or a new object."""
        metadata = body["metadata"]
        scope = None if kind.plural in CLUSTER_SCOPED else metadata.get("namespace", "serving")
        await self._write((ref(kind), scope, metadata["name"]), lambda old: merge(old, body), kind.kind)

    async def remove(self, kind: Resource, name: str, namespace: str = "serving") -> None:
        """Someone deletes it; one with finalizers is marked, and goes with the last of them."""
        scope = None if kind.plural in CLUSTER_SCOPED else namespace
        key = (ref(kind), scope, name)
        if self.objects[key].raw["metadata"].get("finalizers"):
            stamp = {"metadata": {"deletionTimestamp": times.stamp(time.time())}}
            await self._write(key, lambda old: merge(old, stamp), kind.kind)
        else:
            await self._drop(key)

    async def _drop(self, key: Any) -> None:
        last = self.objects[key].raw
        self.objects[key].delete()
        await self._buses[key[0]].put({"type": "DELETED", "object": last})

    async def _write(self, key: Any, change: Callable[[Body], Body], kind: str) -> Body:
        there = self.objects[key] if key in self.objects else None  # noqa: SIM401 - it has no `get`
        old = None if there is None or there.deleted else there.raw
        made = change(old or {})
        metadata = {**made.get("metadata", {}), "name": key[2]} | ({"namespace": key[1]} if key[1] else {})
        metadata["resourceVersion"] = str(next(self.numbers))
        metadata.setdefault("uid", f"uid-{key[2]}-{metadata['resourceVersion']}")
        metadata.setdefault("creationTimestamp", "2026-11-29T11:00:00Z")
        same = old is not None and old.get("spec") == made.get("spec")
        metadata["generation"] = metadata.get("generation", 0) + (not same)
        made = {
            "apiVersion": f"{key[0].group}/{key[0].version}".lstrip("/"),
            "kind": kind,
            **made,
            "metadata": metadata,
        }
        if there is not None:
            del self.objects[key]
        self.objects[key] = made
        await self._buses[key[0]].put({"type": "ADDED" if old is None else "MODIFIED", "object": made})
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            await self._drop(key)
        return made

    async def _handle(self, request: Any) -> Any:
        for script in self.scripts:
            fits = request.method.value.lower() == script.method and re.search(script.path, request.url.path)
            if script.times > 0 and fits:
                script.times -= 1
                body = {"kind": "Status", "code": script.status, "message": "as scripted"}
                return aiohttp.web.json_response(body, status=script.status, headers=dict(script.headers))
        if request.resource is None or request.params.get("watch") or not request.resource.plural:
            return await super()._handle(request)
        return self._read(request) if request.method.value == "GET" else await self._change(request)

    def _read(self, request: Any) -> Any:
        """One object, or a list: looked up here, since the emulator tries every rule and object for each request."""
        if request.name:
            key = (request.resource, request.namespace, request.name)
            found = self.objects[key] if key in self.objects else None  # noqa: SIM401 - it has no `get`
            if found is None or found.deleted:
                return aiohttp.web.json_response({"kind": "Status", "code": 404, "message": "none"}, status=404)
            return aiohttp.web.json_response(found.raw)
        items = [
            one.raw
            for (kind, namespace, _), one in self.objects.items()
            if kind == request.resource and request.namespace in (None, namespace) and not one.deleted
        ]
        selector = request.params.get("labelSelector", "")
        items = [item for item in items if selects(selector, item)]
        return aiohttp.web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    async def _change(self, request: Any) -> Any:
        headers = {key.lower(): value for key, value in request.headers.items()}
        body = request.data or {}
        name = request.name or body.get("metadata", {}).get("name")
        kind = next((one.kind for one in ALL if ref(one) == request.resource), "")
        call = Call(
            request.method.value,
            headers.get("content-type", ""),
            str(request.resource.plural),
            request.namespace or "",
            name,
            request.subresource or "",
            request.params.get("fieldManager", ""),
            request.params.get("force", ""),
            body,
        )
        self.calls.append(call)
        key = (request.resource, request.namespace, name)
        there = self.objects[key] if key in self.objects else None  # noqa: SIM401 - it has no `get`
        old = None if there is None or there.deleted else there.raw
        problem = self._problem(call, body, old)
        if problem:
            return aiohttp.web.json_response({"kind": "Status", "code": problem, "message": "no"}, status=problem)
        if call.method == "DELETE":
            await self.remove(next(one for one in ALL if ref(one) == request.resource), name, request.namespace or "")
            return aiohttp.web.json_response({"kind": "Status", "status": "Success"})
        made = await self._write(key, self._changing(call, key, body), kind)
        return aiohttp.web.json_response(made, status=201 if old is None else 200)

    def _problem(self, call: Call, body: Body, old: Body | None) -> int:
        if old is None:
            creates = call.method == "POST" or (call.content_type == APPLY and not call.subresource)
            return 0 if creates else 404
        metadata = body.get("metadata", {})
        version = metadata.get("resourceVersion")
        if call.method == "POST" or version not in (None, old["metadata"]["resourceVersion"]):
            return 409
        uid = metadata.get("uid") or (body.get("preconditions") or {}).get("uid")
        return 409 if uid and uid != old["metadata"]["uid"] else 0

    def _changing(self, call: Call, key: Any, body: Body) -> Callable[[Body], Body]:
        if call.content_type == MERGE:
            return lambda old: merge(old, body)
        if call.content_type != APPLY:
            return lambda old: {**old, **body}
        slot = (key, call.manager, call.subresource)
        said, self.said[slot] = self.said.get(slot, {}), body
        own = {k: v for k, v in body.items() if k not in ("apiVersion", "kind")}
        if call.subresource:
            own = {call.subresource: own.get(call.subresource)}
            said = {call.subresource: said.get(call.subresource) or {}}

        def change(old: Body) -> Body:
            made = merge(without(old, said, own), own)
            if call.plural == "nodes":
                made["status"]["conditions"] = self._by_type(old, said, own)
            return dict(made)

        return change

    @staticmethod
    def _by_type(old: Body, said: Body, own: Body) -> list[Body]:
        """Conditions of a node are one item a type, each with its own manager."""
        mine = {one["type"] for body in (said, own) for one in (body.get("status") or {}).get("conditions") or []}
        rest = [one for one in (old.get("status") or {}).get("conditions") or [] if one["type"] not in mine]
        return rest + list(own["status"]["conditions"])


def selects(selector: str, item: Body) -> bool:
    labels = item["metadata"].get("labels") or {}
    for part in filter(None, selector.split(",")):
        name, _, value = part.partition("=")
        if name not in labels or ("=" in part and labels[name] != value):
            return False
    return True


class FakeEngines:
    """Engines by URL."""

    def __init__(self) -> None:
        self.views: dict[str, EngineView] = {}
        self.calls: list[EngineCall] = []
        self.failing: dict[str, str] = {}

    def look(self, url: str, *, sleeps: bool) -> EngineView:
        return self.views.get(url, EngineView())

    def call(self, action: EngineCall) -> None:
        self.calls.append(action)
        if action.pod in self.failing:
            raise CallError(self.failing[action.pod], 500)
        view = self.views.get(action.url, EngineView())
        adapters = view.adapters or frozenset()
        sleeping = {"sleep": True, "wake": False}.get(action.call, view.sleeping)
        held = {"load": adapters | {action.adapter}, "unload": adapters - {action.adapter}}
        self.views[action.url] = EngineView(
            held.get(action.call, adapters), view.busy_adapters, view.requests, sleeping
        )


class FakeColdstart:
    """Cold-start services by URL."""

    def __init__(self) -> None:
        self.views: dict[str, NodeView] = {}
        self.staged: list[StageCall] = []
        self.pinned: list[PinCall] = []

    def look(self, url: str) -> NodeView:
        return self.views.get(url, NodeView(url))

    def stage(self, action: StageCall) -> None:
        self.staged.append(action)
        before = self.views[action.url]
        snapshot = Snapshot(f"key-{action.uri}", f"/var/cache/tonnage/{len(self.staged)}", "r1", action.pin)
        self.views[action.url] = NodeView(action.url, {**(before.snapshots or {}), action.uri: snapshot})

    def pin(self, action: PinCall) -> None:
        self.pinned.append(action)
        before = self.views[action.url]
        made = {
            uri: Snapshot(one.key, one.path, one.revision, action.pinned if one.key == action.key else one.pinned)
            for uri, one in (before.snapshots or {}).items()
        }
        self.views[action.url] = NodeView(action.url, made)


class FakePlanner:
    """Advice by pool."""

    def __init__(self) -> None:
        self.pools: dict[str, Advice] = {}

    def advice(self, pool: str) -> Advice:
        return self.pools.get(pool, Advice(problem="no such pool"))


class Fleet:
    """A running operator and its surroundings."""

    def __init__(self, server: ApiServer, url: str) -> None:
        self.server, self.url = server, url
        self.engines, self.coldstart, self.planner = FakeEngines(), FakeColdstart(), FakePlanner()
        self.running: list[Operator] = []

    def login(self) -> Configuration:
        found = Configuration()
        found.host, found.proxy = self.url.rstrip("/"), None
        return found

    async def start(self, **settings: Any) -> Operator:
        given = {"leader_election": False, "resync_s": 60.0, "namespace": "tonnage", **settings}
        pace = Pace(relist_s=30.0, least_s=0.01, most_s=0.05)
        ports = Ports(self.login, self.engines, self.coldstart, self.planner, SystemClock(), CollectorRegistry(), pace)
        operator = Operator(OperatorSettings(**given), ports)
        await operator.start()
        self.running.append(operator)
        return operator

    async def stop(self) -> None:
        for operator in self.running:
            await operator.stop()
        self.running.clear()

    async def until(self, seen: Callable[[], Any], seconds: float = 90.0) -> Any:
        """The first true value of `seen`."""
        try:
            async with asyncio.timeout(seconds):
                while not (found := seen()):  # noqa: ASYNC110 - what is waited for has no event
                    await asyncio.sleep(0.01)
                return found
        except TimeoutError:
            raise AssertionError(f"not seen within {seconds} s; writes: {self.server.calls[-6:]}") from None


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with ApiServer() as server, Server(server):
        server.prepare()
        made = Fleet(server, str(server.url))
        yield made
        await made.stop()
