"""Everything a decision needs, read from the copy of the cluster, the engines and the services."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tonnage_operator import kinds
from tonnage_operator.cluster import COLDSTART, Cluster
from tonnage_operator.gpu_profile import crd as gpu_crd
from tonnage_operator.gpu_profile import reconcile as gpu
from tonnage_operator.lora_adapter import reconcile as lora
from tonnage_operator.model_cache import reconcile as cache
from tonnage_operator.model_server import reconcile as server
from tonnage_operator.model_server.engine import PORT
from tonnage_operator.model_server.pod import Fleet
from tonnage_operator.model_server.target import Advice
from tonnage_operator.nodes import NodeView
from tonnage_operator.pods import EngineView, PodView, pod_view
from tonnage_operator.queue import Key
from tonnage_operator.times import stamp
from tonnage_runtime.kube import KubeClient, KubeNotFoundError, Object, Resource


class EnginePort(Protocol):
    """Engines as they tell of themselves."""

    def look(self, url: str, *, sleeps: bool) -> EngineView:
        """What the engine at `url` says now."""
        ...


class ColdstartPort(Protocol):
    """Cold-start services as they tell of their nodes."""

    def look(self, url: str) -> NodeView:
        """What the service at `url` says now."""
        ...


class PlannerPort(Protocol):
    """The planner."""

    def advice(self, pool: str) -> Advice:
        """What it says of a pool now."""
        ...


@dataclass(frozen=True)
class Sources:
    """Where facts come from."""

    client: KubeClient
    cluster: Cluster
    engines: EnginePort
    coldstart: ColdstartPort
    planner: PlannerPort
    fleet: Fleet
    rules: gpu.NodeRules
    coldstart_port: int
    coldstart_scheme: str = "http"


class Gather:
    """Facts for each kind of decision."""

    def __init__(self, sources: Sources) -> None:
        self._from = sources
        self.tries: dict[tuple[str, str, str], lora.Try] = {}
        """Failed loads by (namespace, adapter, pod uid)."""
        self.strangers: dict[tuple[str, str, str], Object] = {}
        """Objects that have a child's name and are not ours, by (plural, namespace, name)."""
        self.refusals: dict[Key, dict[str, str]] = {}
        """What was refused at the last try, by the resource it was done for and by what it was done to."""

    def model_server(self, item: Object, now_s: float) -> server.Seen:
        """Facts of a ModelServer; engines are asked only where a warm pool needs to know."""
        namespace, name = kinds.namespace_of(item), kinds.name_of(item)
        pods = self._pods(namespace, name)
        scaling = (item.get("spec") or {}).get("scaling") or {}
        sleeps = scaling.get("warmKind") == "sleeping"
        asks = scaling.get("mode") in ("direct", "keda", "hpa") or scaling.get("warmAuto")
        warm = [pod for pod in pods if pod.part == "warm" and pod.ready and sleeps]
        return server.Seen(
            item=item,
            now=stamp(now_s),
            fleet=self._from.fleet,
            there=self._there(item),
            pods=pods,
            engines={pod.uid: self._from.engines.look(pod.url, sleeps=True) for pod in warm},
            scalers=[
                one
                for kind in kinds.SCALERS
                for key, one in self._from.cluster.objects(kind.plural).items()
                if key.startswith(f"{namespace}/")
            ],
            advice=self._from.planner.advice(name) if asks else Advice(),
            refusals=self._refusals(kinds.MODEL_SERVERS, item),
        )

    def lora_adapter(self, item: Object, now_s: float) -> lora.Seen:
        """Facts of a LoraAdapter; every engine that could hold it is asked."""
        namespace, name = kinds.namespace_of(item), kinds.name_of(item)
        spec = item.get("spec") or {}
        target = str(spec.get("model") or "")
        found = self._server(namespace, target)
        slots = (((found or {}).get("spec") or {}).get("engine") or {}).get("loraSlots")
        pods = [pod for pod in self._pods(namespace, target) if pod.part == "serving" and pod.url]
        return lora.Seen(
            item=item,
            now_s=now_s,
            server=found,
            slots=slots if isinstance(slots, int) else 0,
            pods=pods,
            engines={pod.uid: self._from.engines.look(pod.url, sleeps=False) for pod in pods if pod.ready},
            caches=self._services({pod.node for pod in pods}),
            adapters=frozenset(
                kinds.name_of(one)
                for one in self._from.cluster.customs.all(kinds.LORA_ADAPTERS.plural)
                if kinds.namespace_of(one) == namespace and (one.get("spec") or {}).get("model") == target
            ),
            # Copied first: other threads note their own tries meanwhile.
            tries={uid: one for (ns, who, uid), one in list(self.tries.items()) if (ns, who) == (namespace, name)},
            refusals=self._refusals(kinds.LORA_ADAPTERS, item),
            shared_cache=bool(self._from.fleet.cache_host_path),
        )

    def model_cache(self, item: Object, now_s: float) -> cache.Seen:
        """Facts of a ModelCache."""
        others = self._from.cluster.customs.all(kinds.MODEL_CACHES.plural)
        return cache.Seen(
            item=item,
            now_s=now_s,
            fleet=self._from.fleet,
            nodes=list(self._from.cluster.objects(kinds.NODES.plural).values()),
            services=self._services(None),
            there=self._there(item),
            refusals=self._refusals(kinds.MODEL_CACHES, item),
            pinned_elsewhere=frozenset(
                str((one.get("spec") or {}).get("uri") or "")
                for one in others
                if kinds.key_of(one) != kinds.key_of(item)
                and (one.get("spec") or {}).get("pin")
                and not kinds.meta(one).get("deletionTimestamp")
            ),
        )

    def fleet(self, now_s: float) -> gpu.Seen:
        """Facts of every GPU and node. Profiles are listed anew: a mark is not taken back on a copy that is behind."""
        try:
            items, _ = self._from.client.list(kinds.GPU_PROFILES)
        except KubeNotFoundError:
            items = []
        profiles = [view for item in items if (view := gpu_crd.read(item)) is not None]
        nodes = list(self._from.cluster.objects(kinds.NODES.plural).values())
        return gpu.Seen(now_s, self._from.rules, profiles, nodes)

    def _server(self, namespace: str, name: str) -> Object | None:
        found = self._from.cluster.customs.get(kinds.MODEL_SERVERS.plural, namespace, name)
        if found is not None or not name:
            return found
        try:
            return self._from.client.get(kinds.inside(kinds.MODEL_SERVERS, namespace), name)
        except KubeNotFoundError:
            return None

    def _pods(self, namespace: str, name: str) -> list[PodView]:
        found = self._from.cluster.objects(kinds.PODS.plural).items()
        mine = [
            pod
            for key, pod in found
            if kinds.labels_of(pod).get(kinds.SERVER_LABEL) == name and key.startswith(f"{namespace}/")
        ]
        return [pod_view(pod, PORT) for pod in mine]

    def _there(self, item: Object) -> dict[tuple[str, str], Object]:
        """What the item owns, and strangers with a name of one of its parts."""
        namespace, uid = kinds.namespace_of(item), str(kinds.meta(item).get("uid") or "")
        found = {
            (kind.plural, kinds.name_of(one)): one
            for kind in (*kinds.CHILDREN, *kinds.SCALERS)
            for one in self._from.cluster.objects(kind.plural).values()
            if kinds.owned_by(one, uid)
        }
        strange = {(p, n): one for (p, ns, n), one in list(self.strangers.items()) if ns == namespace}
        return strange | found

    def _refusals(self, resource: Resource, item: Object) -> Mapping[str, str]:
        return dict(self.refusals.get((resource.plural, kinds.namespace_of(item), kinds.name_of(item)), {}))

    def _services(self, nodes: set[str] | None) -> Mapping[str, NodeView]:
        port, scheme = self._from.coldstart_port, self._from.coldstart_scheme
        pods = [pod_view(pod, port, scheme) for pod in self._from.cluster.objects(COLDSTART).values()]
        asked = [pod for pod in pods if pod.serves and pod.url and pod.node and (nodes is None or pod.node in nodes)]
        return {pod.node: self._from.coldstart.look(pod.url) for pod in asked}
