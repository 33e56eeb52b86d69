"""The endpoints the router knows: their connections, health, and what they serve."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tonnage_core.flow_control.peers import Load
from tonnage_core.scheduling import Candidate, Scheduler
from tonnage_core.scheduling.pace import PrefillPace
from tonnage_core.scheduling.residency import Residency
from tonnage_router.settings import EndpointSpec, RouterSettings
from tonnage_router.wire.pool import UpstreamPool
from tonnage_runtime.errors import SettingsError

if TYPE_CHECKING:
    from tonnage_core.flow_control.breaker import Breaker
    from tonnage_router.kv_follower import KvFollower


ADMIN = "admin"


def address(spec: EndpointSpec) -> tuple[str, int]:
    """Host and port of an endpoint's URL; `SettingsError` when it is not `http://host:port`."""
    parts = urlsplit(spec.url)
    if parts.scheme != "http" or not parts.hostname:
        raise SettingsError(f"endpoint {spec.url}: an http://host:port URL is expected")
    return parts.hostname, parts.port or 80


def endpoint_id(spec: EndpointSpec) -> str:
    """The endpoint's id: its own, or host and port."""
    host, port = address(spec)
    return spec.id or f"{host}:{port}"


class Endpoint:
    """One engine: its address, connections, candidate, and health as probes and traffic see it."""

    def __init__(self, spec: EndpointSpec, slot: int, settings: RouterSettings, breaker: "Breaker") -> None:
        self.spec = spec
        self.host, self.port = address(spec)
        self.id = endpoint_id(spec)
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.authority = f"{shown}:{self.port}".encode()
        self.request_end = b" HTTP/1.1\r\nhost: %b\r\n" % self.authority
        """What follows the target in a request to it."""
        self.served_model, self.known_as = spec.served_model, spec.model
        self.rank, self.api_key = spec.data_parallel_rank, spec.api_key
        self.pool = UpstreamPool(
            self.host, self.port, connect_timeout_s=settings.connect_timeout_s, idle_s=settings.upstream_idle_s
        )
        self.breaker = breaker
        self.probe_ok = False
        self.probe_failures = 0
        self.probe_problem: str | None = "not probed yet"
        self.listed: list[dict[str, Any]] = []
        """Entries of the engine's /v1/models."""
        self.metrics_at: float | None = None
        """Monotonic time of the last good metrics poll."""
        self.residency = Residency()
        self.requests = 0
        self.failures = 0
        self.pace = PrefillPace()
        self.started_at: float | None = None
        """The engine process's start time as it reports it; a change is a restart."""
        self.follower: KvFollower | None = None
        """Follows its KV events, where it publishes any."""
        self.peer_load = Load()
        """Part of the candidate's counts that is other replicas' work, as they told it."""
        self.drained_by: set[str] = set()
        """Why it gets no new requests: an admin's wish, what discovery says of its pod."""
        self.candidate = Candidate(
            self.id,
            slot,
            models=frozenset({spec.model} if spec.model else {"\0unlisted"}),
            healthy=False,
            role=spec.role,
            length_class=spec.length_class,
            gpu_speed=spec.gpu_speed,
            cost=spec.cost,
            adapter_slots=spec.adapter_slots,
        )

    @property
    def pool_name(self) -> str:
        """The base model it serves, as metrics name its pool; empty until it has listed one."""
        bases = (entry.get("id") for entry in self.listed if not entry.get("parent"))
        return self.spec.model or next((str(name) for name in bases if name), "")


class Fleet:
    """Endpoints by id and by slot; keeps the scheduler's candidates in step."""

    def __init__(self, settings: RouterSettings, scheduler: Scheduler) -> None:
        self._settings = settings
        self.scheduler = scheduler
        self.by_id: dict[str, Endpoint] = {}
        self.by_slot: dict[int, Endpoint] = {}
        self.seen_models: set[str] = set()
        """Every model ever served: unknown ones answer 404, known ones without an endpoint 503."""
        self.parents: dict[str, str] = {}
        """Base models of adapters, as engines list them."""

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(list(self.by_id.values()))

    def __len__(self) -> int:
        return len(self.by_id)

    def idle_because(self) -> str | None:
        """Why no endpoint takes a request, whatever its model; None: one does."""
        healthy = [endpoint.candidate for endpoint in self if endpoint.candidate.healthy]
        if not healthy:
            return "no endpoint is healthy"
        if any(c.healthy for model in self.seen_models for c in self.scheduler.eligible(model)):
            return None
        left = [candidate for candidate in healthy if not candidate.draining]
        if not left:
            return "every healthy endpoint drains"
        if all(candidate.role == "prefill" for candidate in left):
            return "every healthy endpoint that does not drain has the role prefill"
        return "no healthy endpoint lists a model, or the policy's filters keep none"

    def add(self, spec: EndpointSpec, breaker: "Breaker") -> Endpoint:
        """Take an endpoint in, not healthy until a probe says so. `SettingsError` for a second one of the same id."""
        slot = next(n for n in range(len(self.by_slot) + 1) if n not in self.by_slot)
        endpoint = Endpoint(spec, slot, self._settings, breaker)
        if endpoint.id in self.by_id:
            raise SettingsError(f"endpoint {endpoint.id} is listed twice: give each a unique id or url")
        for other in self.by_id.values():
            if other.authority == endpoint.authority:  # another rank of the same engine: it has the same adapters
                endpoint.residency = other.residency
        self.by_id[endpoint.id] = endpoint
        self.by_slot[slot] = endpoint
        if spec.model:
            self.seen_models.add(spec.model)
        self.scheduler.add(endpoint.candidate, self._settings.index_bytes_per_endpoint)
        return endpoint

    def remove(self, endpoint: Endpoint) -> None:
        """Drop an endpoint: no new requests; running answers end by themselves."""
        self.by_id.pop(endpoint.id, None)
        self.by_slot.pop(endpoint.candidate.slot, None)
        endpoint.candidate.draining = True
        if endpoint.follower is not None:
            endpoint.follower.close()
        self.scheduler.remove(endpoint.candidate)
        endpoint.pool.close()

    def set_healthy(self, endpoint: Endpoint, healthy: bool) -> bool:
        """Set what the filters see; True when it changed."""
        if endpoint.candidate.healthy == healthy:
            return False
        endpoint.candidate.healthy = healthy
        self.scheduler.changed()
        return True

    def set_models(self, endpoint: Endpoint, names: frozenset[str]) -> None:
        """What the endpoint serves, as its engine lists it."""
        self.seen_models |= names
        if endpoint.candidate.models != names:
            endpoint.candidate.models = names
            self.scheduler.changed()

    def set_context(self, endpoint: Endpoint, tokens: int | None) -> None:
        """The longest context that the endpoint's engine takes; None: unknown."""
        if endpoint.candidate.max_model_len != tokens:
            endpoint.candidate.max_model_len = tokens
            self.scheduler.changed()

    def drain(self, endpoint: Endpoint, cause: str = ADMIN) -> None:
        """No new requests, for `cause`; running ones go on."""
        self.set_drained(endpoint, cause, drained=True)

    def undrain(self, endpoint: Endpoint, cause: str = ADMIN) -> None:
        """Take new requests again, unless another cause stands."""
        self.set_drained(endpoint, cause, drained=False)

    def set_drained(self, endpoint: Endpoint, cause: str, *, drained: bool) -> None:
        """Set or lift one cause to send the endpoint nothing new."""
        (endpoint.drained_by.add if drained else endpoint.drained_by.discard)(cause)
        if endpoint.candidate.draining != bool(endpoint.drained_by):
            endpoint.candidate.draining = bool(endpoint.drained_by)
            self.scheduler.changed()
