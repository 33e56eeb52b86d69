"""Engine endpoints as a cluster's objects describe them: pods, EndpointSlices joined with their pods, and the pods of
an InferencePool.

Pure: objects of the API in, endpoints out. A pod's uid is the engine's identity: a new pod at an old address, or under
an old name, is another engine. What cannot be read is left unknown, or leaves the pod out, and is said either way.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tonnage_router.settings import EndpointSpec

PREFIX = "tonnage.dev/"
TERMINATING, NOT_READY = "terminating", "not_ready"
FIELDS: Mapping[str, str] = {
    "model": "model",
    "served-model": "served_model",
    "role": "role",
    "length-class": "length_class",
    "gpu-profile": "gpu_profile",
    "gpu-speed": "gpu_speed",
    "cost": "cost",
    "adapter-slots": "adapter_slots",
    "kv-events-port": "kv_events_port",
    "kv-events-replay-port": "kv_events_replay_port",
    "data-parallel-size": "data_parallel_size",
}
"""Names of labels and annotations under `tonnage.dev/`, and the endpoint fields they give. An annotation wins: it may
hold what a label may not, such as the slash of a model name."""
SHIFTED = ("kv-events-port", "kv-events-replay-port")
"""Ports of a pod's first engine, where it has several."""
DECIDING = frozenset({"url", "role", "model", "served_model"})
"""Fields without which an endpoint would get the wrong requests; others are left unknown when they cannot be read."""
SERVICE_LABEL = "kubernetes.io/service-name"
Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Found:
    """An endpoint, and why it gets no new requests now: `terminating`, `not_ready`, both or neither."""

    spec: EndpointSpec
    causes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What could not be taken of an object, and why."""

    name: str
    why: str


Row = Found | Unreadable


def of_pods(pods: Iterable[Object], port: str) -> list[Row]:
    """An endpoint for each running pod with an address. `port` is a container port's name, or a number."""
    return _latest([row for pod in _live(pods) for row in _of_pod(pod, port)])


def of_pool(pool: Object | None, name: str, pods: Iterable[Object]) -> list[Row]:
    """An endpoint for each target port of the InferencePool `name` on each running pod that its selector takes; none
    when there is no such pool. Several ports of a pod are endpoints `<pod>-<port>`, engines beside each other: as ranks
    do, the second publishes its KV events one port after the first (`SHIFTED`), and so on.
    """
    spec = (pool or {}).get("spec") or {}
    wanted = (spec.get("selector") or {}).get("matchLabels") or {}
    numbers = [port.get("number") for port in spec.get("targetPorts") or []]
    problem = _pool_problem(pool, spec.get("appProtocol"), wanted, numbers)
    if problem is not None:
        return [Unreadable(name, problem)]
    rows: list[Row] = []
    for pod in _live(pods):
        labels = _meta(pod).get("labels") or {}
        if all(labels.get(key) == value for key, value in wanted.items()):
            own = str(_meta(pod).get("name"))
            for place, number in enumerate(numbers):
                rows += _at(pod, own if len(numbers) == 1 else f"{own}-{number}", number, place)
    return _latest(rows)


def of_slices(slices: Iterable[Object], pods: Mapping[str, Object], port: str) -> list[Row]:
    """An endpoint for each address of the slices, labelled by its pod in `pods` (by name) where that is known, else by
    the slice. An address in two slices counts once, as does a pod in those of both address families.
    """
    rows: dict[str, Row] = {}
    for piece in sorted(slices, key=lambda item: (str(item.get("addressType")), _meta(item).get("name") or "")):
        number = _slice_port(piece, port)
        for endpoint in piece.get("endpoints") or []:
            for row in _of_slice_endpoint(piece, endpoint, pods, number):
                name = row.spec.id if isinstance(row, Found) else row.name
                rows.setdefault(name or "", row)
    return list(rows.values())


# --- pods -------------------------------------------------------------------------------------------------------------


def _live(pods: Iterable[Object]) -> list[Object]:
    """Running pods with an address; of two at one address, the one that is meant last."""
    live = [pod for pod in pods if _address(pod) and _phase(pod) not in ("Succeeded", "Failed")]
    return sorted(live, key=_precedence)


def _latest(rows: list[Row]) -> list[Row]:
    """Of a pod that is going and a new one that has its address already, the new one."""
    by_url = {row.spec.url: row for row in rows if isinstance(row, Found)}
    return [row for row in rows if not isinstance(row, Found) or by_url[row.spec.url] is row]


def _pool_problem(pool: Object | None, protocol: object, wanted: object, numbers: list[object]) -> str | None:
    if pool is None:
        return "no InferencePool has this name"
    if protocol not in (None, "http"):
        return f"appProtocol {protocol!r}: the router speaks HTTP/1.1 to engines"
    if not wanted or not isinstance(wanted, Mapping) or not numbers or not all(type(n) is int for n in numbers):
        return "an InferencePool needs selector.matchLabels and targetPorts with numbers"
    return None


def _of_pod(pod: Object, port: str) -> Iterator[Row]:
    name = str(_meta(pod).get("name"))
    number = _pod_port(pod, _marks(pod).get("port", port))
    if number is None:
        yield Unreadable(name, f"no container port is named {port!r}: name it, or set {PREFIX}port")
    else:
        yield from _at(pod, name, number)


def _at(pod: Object, name: str, number: int, place: int = 0) -> Iterator[Row]:
    causes = {TERMINATING} if _meta(pod).get("deletionTimestamp") else set()
    if not _ready(pod):
        causes.add(NOT_READY)
    marks = _shifted(_marks(pod), place)
    yield from _rows(name, _url(_address(pod), number), _meta(pod).get("uid"), marks, causes)


def _shifted(marks: Mapping[str, str], place: int) -> Mapping[str, str]:
    """The marks of the engine at a place, 0 and up, among those of a pod; each has its own ranks' ports."""
    ranks = int(size) if _is_number(size := marks.get("data-parallel-size", "1")) else 1
    ports = {key: str(int(marks[key]) + place * ranks) for key in SHIFTED if _is_number(marks.get(key, ""))}
    return {**marks, **ports}


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) < 6


def _rows(name: str, url: str, uid: Any, marks: Mapping[str, str], causes: Iterable[str]) -> Iterator[Row]:
    """The endpoint, and a row for each field that could not be read."""
    values: dict[str, Any] = {FIELDS[key]: value for key, value in marks.items() if key in FIELDS}
    values |= {"id": name, "url": url, "uid": str(uid) if uid else None}
    while True:
        try:
            spec = EndpointSpec.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            field = str(first["loc"][0])
            yield Unreadable(name, f"{PREFIX}{field.replace('_', '-')}: {first['msg']}")
            if field in DECIDING or field not in values:
                return
            del values[field]
        else:
            yield Found(spec, frozenset(causes))
            return


def _precedence(pod: Object) -> tuple[bool, str, str]:
    meta = _meta(pod)
    return not meta.get("deletionTimestamp"), str(meta.get("creationTimestamp") or ""), str(meta.get("uid") or "")


def _pod_port(pod: Object, wanted: str) -> int | None:
    if _is_number(wanted):
        return int(wanted)
    containers = (pod.get("spec") or {}).get("containers") or []
    ports = [port for container in containers for port in container.get("ports") or []]
    named = [port for port in ports if port.get("name") == wanted]
    chosen = named or (ports if len(ports) == 1 else [])
    number = chosen[0].get("containerPort") if chosen else None
    return number if isinstance(number, int) else None


def _ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _address(pod: Object) -> str:
    return str((pod.get("status") or {}).get("podIP") or "")


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase") or "")


# --- slices -----------------------------------------------------------------------------------------------------------


def _of_slice_endpoint(
    piece: Object, endpoint: Object, pods: Mapping[str, Object], number: int | None
) -> Iterator[Row]:
    target = endpoint.get("targetRef") or {}
    name = str(target.get("name") or "")
    pod = pods.get(name)
    if pod is not None and target.get("uid") not in (None, _meta(pod).get("uid")):
        pod = None  # the name's earlier or later holder
    marks = _marks(pod) if pod is not None else _marks(piece)
    addresses = endpoint.get("addresses") or []
    own = marks.get("port", "")
    number = int(own) if _is_number(own) else number
    if not addresses or number is None or piece.get("addressType") == "FQDN":
        shown = name or str(_meta(piece).get("name"))
        yield Unreadable(shown, "the EndpointSlice gives no IP address, or no port of the name that is asked for")
        return
    url = _url(str(addresses[0]), number)
    yield from _rows(name or url.removeprefix("http://"), url, target.get("uid"), marks, _slice_causes(endpoint, pod))


def _slice_causes(endpoint: Object, pod: Object | None) -> set[str]:
    """Conditions of an endpoint; by the API's rule an unknown `ready` counts as ready."""
    conditions = endpoint.get("conditions") or {}
    causes = set()
    if conditions.get("terminating") or (pod is not None and _meta(pod).get("deletionTimestamp")):
        causes.add(TERMINATING)
    if conditions.get("ready") is False:
        causes.add(NOT_READY)
    return causes


def _slice_port(piece: Object, wanted: str) -> int | None:
    ports = piece.get("ports") or []
    found = [p for p in ports if p.get("name") == wanted or str(p.get("port")) == wanted]
    chosen = found or (ports if len(ports) == 1 else [])
    number = chosen[0].get("port") if chosen else None
    return number if isinstance(number, int) else None


# --- both -------------------------------------------------------------------------------------------------------------


def _meta(item: Object) -> Mapping[str, Any]:
    return item.get("metadata") or {}


def _marks(item: Object) -> dict[str, str]:
    """`tonnage.dev/` labels and annotations by their bare name."""
    meta = _meta(item)
    both = {**(meta.get("labels") or {}), **(meta.get("annotations") or {})}
    return {key.removeprefix(PREFIX): str(value) for key, value in both.items() if key.startswith(PREFIX)}


def _url(address: str, port: int) -> str:
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
