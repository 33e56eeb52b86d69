"""A simulated engine put together: settings and ports in, an HTTP application out."""

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from tonnage_core.hardware import GpuSpec
from tonnage_core.models import ModelShape
from tonnage_runtime.clock import Clock
from tonnage_sim.admin import Admin
from tonnage_sim.api.adapters import Adapters
from tonnage_sim.api.basic import VLLM_VERSION, Basic
from tonnage_sim.api.chat import Chat
from tonnage_sim.api.completions import Completions
from tonnage_sim.api.dev import Dev
from tonnage_sim.api.embeddings import Embeddings
from tonnage_sim.api.generation import Generator
from tonnage_sim.api.handover import Handover
from tonnage_sim.api.models import Adapter, Models
from tonnage_sim.api.prompts import PromptReader
from tonnage_sim.api.service import Service
from tonnage_sim.api.tokenization import Tokenization
from tonnage_sim.cache_info import cache_info
from tonnage_sim.engine.build import EnginePlan, plan_engine
from tonnage_sim.engine.clock import EngineClock
from tonnage_sim.engine.loop import EngineLoop
from tonnage_sim.engine.observer import Observer
from tonnage_sim.engine.outbox import Outbox
from tonnage_sim.engine.output import LengthDraw
from tonnage_sim.errors import ApiError, PlainError
from tonnage_sim.faults import Faults
from tonnage_sim.http1.exchange import Exchange
from tonnage_sim.http1.message import Request, Response, json_response
from tonnage_sim.http1.routes import Routes
from tonnage_sim.metric_types import Families
from tonnage_sim.metrics import SimMetrics
from tonnage_sim.settings import SimSettings

if TYPE_CHECKING:
    from tonnage_sim.kv_events import KvEventPublisher

UNCOUNTED = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info"})
"""Handlers that vLLM's http_* metrics leave out; the simulator's own are left out too."""
INFERENCE = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings")
_ADMIN = "/admin/"


@dataclass(frozen=True, slots=True)
class Ports:
    """What the simulator needs from outside."""

    clock: Clock
    registry: CollectorRegistry
    """Series of the process and the interpreter."""
    shape: ModelShape
    gpu: GpuSpec
    crash: Callable[[], None]
    """End the process at once, as a crash does."""


class Simulator:
    """The application: routes, faults on the way to them, and the engine's task."""

    def __init__(self, service: Service, plan: EnginePlan, metrics: SimMetrics, basic: Basic, ports: Ports) -> None:
        self.service = service
        self.routes = Routes()
        self.kv_events: KvEventPublisher | None = None
        self._plan = plan
        self._metrics = metrics
        self._basic = basic
        self._crash = ports.crash
        self._hung = asyncio.Event()
        self._hung.set()
        self._expiry: asyncio.TimerHandle | None = None
        self._froze = False
        service.faults.changed = self._faults_changed

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The engine's task, alive inside the context."""
        task = asyncio.create_task(self.service.loop.run(), name="engine")
        if self.kv_events is not None:
            self.kv_events.start()
        try:
            yield
        finally:
            task.cancel()
            if self.kv_events is not None:
                self.kv_events.close()
            if self._expiry is not None:
                self._expiry.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def __call__(self, request: Request, exchange: Exchange) -> None:
        """Answer one request."""
        label, handler = self.routes.find(request)
        began_s = self.service.clock.now()
        if label not in UNCOUNTED and not label.startswith(_ADMIN):
            exchange.on_end = lambda: self._count(label, request, exchange, began_s)
        if not request.path.startswith(_ADMIN):
            await self._hung.wait()
        fault = self.service.faults.get("error") if label in INFERENCE else None
        if fault is not None:
            exchange.respond(_injected(fault.status))
            return
        try:
            response = await handler(request, exchange)
        except ApiError as error:
            response = json_response(error.body(), error.status)
        except PlainError as error:
            response = json_response({"detail": str(error)}, error.status)
        if response is not None:
            exchange.respond(response)

    def _count(self, label: str, request: Request, exchange: Exchange, began_s: float) -> None:
        sent = request.headers.get("content-length", "0")
        size = int(sent) if sent.isdecimal() else 0
        took_s = self.service.clock.now() - began_s
        self._metrics.http(label, request.method, exchange.status or 499, size, exchange.response_bytes, took_s)

    def _faults_changed(self) -> None:
        faults = self.service.faults
        if faults.get("crash") is not None:
            self._crash()
        slow = faults.get("slow")
        self._plan.step_clock.factor = 1.0 if slow is None else slow.factor
        hung = faults.get("hang") is not None
        self.service.loop.freeze(hung)
        if hung:
            self._hung.clear()
        else:
            self._hung.set()
        stale = faults.get("metrics_stale") is not None
        if stale and not self._froze:
            self._basic.freeze()
        self._froze = stale
        self._watch_expiry()

    def _watch_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        left_s = self.service.faults.next_end_s()
        if left_s is not None:
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(max(left_s, 0.0) + 0.001, self.service.faults.expire)


def build_app(settings: SimSettings, ports: Ports) -> Simulator:
    """The simulated engine of `settings`."""
    names = settings.served_model_name or (settings.model,)
    plan = plan_engine(settings, ports.shape, ports.gpu, names[0])
    families = Families()
    metrics = SimMetrics(
        families,
        model=names[0],
        max_model_len=plan.config.max_model_len,
        max_loras=settings.max_loras,
        cache=cache_info(settings, plan),
    )
    observer = Observer(metrics)
    clock = EngineClock(ports.clock, settings.time_scale)
    loop = EngineLoop(plan.make, clock, observer, Outbox(settings.flush_interval_ms / 1e3))
    service = _service(settings, plan, names, clock, loop, Faults(ports.clock))
    basic = Basic(service, ports.registry, families, observer)
    simulator = Simulator(service, plan, metrics, basic, ports)
    _add_routes(simulator.routes, settings, service, metrics, basic)
    if settings.kv_events_config is not None and plan.record_cache:
        from tonnage_sim.kv_events import KvEventPublisher

        simulator.kv_events = loop.cache_watcher = KvEventPublisher(settings.kv_events_config, settings.block_size)
    return simulator


def _service(
    settings: SimSettings,
    plan: EnginePlan,
    names: tuple[str, ...],
    clock: EngineClock,
    loop: EngineLoop,
    faults: Faults,
) -> Service:
    models = Models(names, settings.model, plan.config.max_model_len)
    for name, path in settings.lora_modules.items():
        models.adapters[name] = Adapter(name, path)
    lengths = LengthDraw(settings.output_tokens_median, settings.output_tokens_sigma)
    generator = Generator(
        loop,
        model=names[0],
        block_size=settings.block_size,
        seed=settings.seed,
        lengths=lengths,
        keep_prompts=plan.record_cache,
    )
    described = settings.model_dump_json(exclude={"host", "port", "log_level", "kv_events_config"})
    return Service(
        models=models,
        generator=generator,
        prompts=PromptReader(plan.config.max_model_len),
        loop=loop,
        clock=clock,
        faults=faults,
        fingerprint=f"vllm-{VLLM_VERSION}-{hashlib.sha256(described.encode()).hexdigest()[:8]}",
        prompt_tokens_details=settings.enable_prompt_tokens_details,
        max_loras=settings.max_loras,
        check_lora_paths=settings.check_lora_paths,
        new_id=lambda: secrets.token_hex(8),
        handover=Handover(
            settings.role,
            where=(settings.host, settings.port),
            tp=settings.tp,
            bytes_per_token=plan.kv_bytes * settings.tp / (plan.config.num_blocks * plan.config.block_size),
            link_gbps=settings.kv_link_gbps,
            latency_s=settings.kv_link_latency_ms / 1e3,
            generator=generator,
            loop=loop,
            clock=clock,
        ),
    )


def _add_routes(routes: Routes, settings: SimSettings, service: Service, metrics: SimMetrics, basic: Basic) -> None:
    routes.add("GET", "/health", basic.health)
    routes.add("GET", "/healthz", basic.health)
    routes.add("GET", "/readyz", basic.health)
    routes.add("GET POST", "/ping", basic.health)
    routes.add("GET", "/version", basic.version)
    routes.add("GET", "/load", basic.load)
    routes.add("GET", "/metrics", basic.metrics)
    routes.add("GET", "/v1/models", basic.models)
    routes.add("POST", "/v1/completions", Completions(service))
    routes.add("POST", "/v1/chat/completions", Chat(service))
    routes.add("POST", "/v1/embeddings", Embeddings(service))
    tokenization = Tokenization(service)
    routes.add("POST", "/tokenize", tokenization.tokenize)
    routes.add("POST", "/detokenize", tokenization.detokenize)
    adapters = Adapters(service)
    routes.add("POST", "/v1/load_lora_adapter", adapters.load)
    routes.add("POST", "/v1/unload_lora_adapter", adapters.unload)
    admin = Admin(service)
    routes.add("POST", "/admin/fault", admin.begin_fault)
    routes.add("GET", "/admin/fault", admin.list_faults)
    routes.add("DELETE", "/admin/fault", admin.clear_faults)
    routes.add("GET", "/admin/state", admin.state)
    if settings.dev_mode:
        dev = Dev(service, metrics)
        routes.add("POST", "/reset_prefix_cache", dev.reset_prefix_cache)
        routes.add("POST", "/reset_mm_cache", dev.reset_mm_cache)
        routes.add("POST", "/sleep", dev.sleep)
        routes.add("POST", "/wake_up", dev.wake_up)
        routes.add("GET", "/is_sleeping", dev.is_sleeping)


def _injected(status: int) -> Response:
    return json_response(
        {"error": {"message": "injected fault", "type": "InternalServerError", "param": None, "code": status}}, status
    )
