"""Which processes make a local fleet, with their ports and environment. Pure: options in, process specs out.

Ports count up from `port_base`: router, its admin port, planner, GPU agent, cold start, the fleet's own status page,
two for the router of the policy compared with, the bench, from +10 the engines, and then two for each engine's KV
events. Base 0 takes free ports. A fleet that is scaled holds ports for the most engines it may have; router and planner
then read its engines from one file, and the planner's clock runs as fast as the engines'.
"""

import hashlib
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tonnage_runtime.errors import PortInUseError
from tonnage_runtime.ports import free_ports

HOST = "127.0.0.1"
FIXED = ("router", "admin", "planner", "agent", "coldstart", "fleet", "compared_router", "compared_admin", "bench")
NAMED = ("router", "admin", "planner", "agent", "coldstart", "bench", "fleet")
FIRST_ENGINE = 10
COMPARED_WITH = "round_robin"
OTHER_PORTS = "choose others with --port-base (0: free ones)"
PLANNER_LOOK_S = 0.5
PLANNER_STALE_S = 5.0
"""Wall seconds between the planner's looks, and after which a reading is too old: a busy machine delays both."""


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """What `tonnage up` was asked for. `speed` is trace seconds and engine seconds per wall second."""

    engines: int = 4
    engine_urls: tuple[str, ...] = ()
    model: str = "meta-llama/Llama-3.1-8B"
    gpu: str = "H200-SXM-141GB"
    policy: str = "prefix"
    speed: float = 1.0
    seed: int = 0
    port_base: int = 8080
    log_level: str = "WARNING"
    state_dir: Path = Path(".tonnage")
    kv_events: bool = False
    """Simulated engines publish KV events, and the router matches prompts of token ids by them."""
    max_engines: int | None = None
    """The planner's target starts and ends engines, from `engines` to this many; None: they are what they are."""
    start_s: float = 60.0
    """Engine seconds that the start of an engine takes that the planner asks for."""
    scale_down_after_s: float = 300.0
    """Engine seconds for which the load must have fitted fewer engines."""
    slo_ttft_ms: float = 2000.0
    """Limit of the time to the first token in engine time: the planner scales by it, the router judges by it."""
    slo_tpot_ms: float = 50.0
    """Limit of the time per output token in engine time, likewise."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters that every simulated engine is to hold."""
    console_token: str = ""
    """What the console's actions need; empty turns them off."""

    @property
    def most_engines(self) -> int:
        """Engines there may be."""
        return self.max_engines or self.engines

    @property
    def endpoints_file(self) -> Path:
        """Where router and planner read the engines of a fleet that is scaled."""
        return self.state_dir.absolute() / "endpoints.yaml"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One supervised process: a module to run, its environment on top of ours, and where it says that it is ready."""

    name: str
    module: str
    url: str
    env: Mapping[str, str] = field(default_factory=dict)
    ready_path: str = "/readyz"
    start_s: float = 0.0
    """Wall seconds that its start takes by design, beside what the process needs."""


def allocate_ports(options: FleetOptions) -> dict[str, int]:
    """A free port for each part; `PortInUseError` names the first that is taken, before anything starts."""
    engines = range(0 if options.engine_urls else options.most_engines)
    names = list(FIXED) + [f"engine-{i}" for i in engines]
    if options.kv_events:
        names += [f"{what}-{i}" for i in engines for what in ("events", "replays")]
    if options.port_base == 0:
        return dict(zip(names, free_ports(len(names), HOST), strict=True))
    places = [*range(len(FIXED)), *range(FIRST_ENGINE, FIRST_ENGINE + len(names) - len(FIXED))]
    return _taken_for_a_moment({name: options.port_base + place for name, place in zip(names, places, strict=True)})


def fresh_compared_ports(options: FleetOptions, ports: Mapping[str, int]) -> dict[str, int]:
    """Ports for the compared router, which starts late: free ones are found anew, since others may have taken them."""
    if options.port_base != 0:
        return dict(ports)
    names = ("compared_router", "compared_admin")
    return {**ports, **dict(zip(names, free_ports(len(names), HOST), strict=True))}


def _taken_for_a_moment(wanted: Mapping[str, int]) -> dict[str, int]:
    held: list[socket.socket] = []
    try:
        for port in wanted.values():
            sock = socket.socket()
            held.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((HOST, port))
            except (OSError, OverflowError) as error:
                raise PortInUseError(HOST, port, OTHER_PORTS) from error
    finally:
        for sock in held:
            sock.close()
    return dict(wanted)


def urls(options: FleetOptions, ports: Mapping[str, int]) -> dict[str, str | list[str]]:
    """Every URL a user may want, by name; `engines` is a list."""
    named: dict[str, str | list[str]] = {name: f"http://{HOST}:{ports[name]}" for name in NAMED}
    named["console"] = f"{named['planner']}/console/fleet"
    named["engines"] = engine_urls(options, ports)
    return named


def engine_urls(options: FleetOptions, ports: Mapping[str, int]) -> list[str]:
    """The given engines, or those this fleet starts."""
    if options.engine_urls:
        return [url.rstrip("/") for url in options.engine_urls]
    return [f"http://{HOST}:{ports[f'engine-{i}']}" for i in range(options.engines)]


def engine_specs(options: FleetOptions, ports: Mapping[str, int]) -> list[ProcessSpec]:
    """The simulated engines that the fleet begins with; none when real ones are given."""
    return [] if options.engine_urls else [engine_spec(options, ports, i) for i in range(options.engines)]


def engine_spec(options: FleetOptions, ports: Mapping[str, int], engine: int, *, start_s: float = 0.0) -> ProcessSpec:
    """One simulated engine whose start takes `start_s` engine seconds."""
    port = ports[f"engine-{engine}"]
    env = _env(
        "SIM",
        options,
        port,
        MODEL=options.model,
        GPU=options.gpu,
        TIME_SCALE=options.speed,
        SEED=options.seed + engine,
        START_S=start_s,
        MAX_LORAS=len(options.adapters),
        **_published(options, ports, engine),
    )
    url = f"http://{HOST}:{port}"
    return ProcessSpec(f"engine-{engine}", "tonnage_sim.main", url, env, "/health", start_s / options.speed)


def _published(options: FleetOptions, ports: Mapping[str, int], engine: int) -> dict[str, str]:
    if not options.kv_events:
        return {}
    addresses = {
        "endpoint": f"tcp://{HOST}:{ports[f'events-{engine}']}",
        "replay_endpoint": f"tcp://{HOST}:{ports[f'replays-{engine}']}",
    }
    return {"KV_EVENTS_CONFIG": json.dumps(addresses)}


def _endpoints(options: FleetOptions, ports: Mapping[str, int], model: str) -> list[dict[str, object]]:
    """What the router is told of the engines."""
    if options.engine_urls:
        return [{"url": url, "model": model} for url in engine_urls(options, ports)]
    return [endpoint_row(options, ports, model, i) for i in range(options.engines)]


def endpoint_row(options: FleetOptions, ports: Mapping[str, int], model: str, engine: int) -> dict[str, object]:
    """What router and planner are told of one simulated engine."""
    row: dict[str, object] = {"url": f"http://{HOST}:{ports[f'engine-{engine}']}", "model": model}
    if options.kv_events:
        row |= {"kv_events_port": ports[f"events-{engine}"], "kv_events_replay_port": ports[f"replays-{engine}"]}
    return row


def router_spec(
    options: FleetOptions, ports: Mapping[str, int], model: str, *, policy: str, compared: bool = False
) -> ProcessSpec:
    """The router that stays, or the one of the policy compared with."""
    port, admin = ("compared_router", "compared_admin") if compared else ("router", "admin")
    told: dict[str, object] = {"ENDPOINTS": json.dumps(_endpoints(options, ports, model))}
    if options.max_engines is not None:
        told = {"DISCOVERY": "file", "ENDPOINTS_FILE": options.endpoints_file, "RELOAD_INTERVAL_S": 0.25}
    return ProcessSpec(
        name="compared-router" if compared else "router",
        module="tonnage_router.main",
        url=f"http://{HOST}:{ports[admin]}",
        env=_env(
            "ROUTER",
            options,
            ports[port],
            ADMIN_PORT=ports[admin],
            POLICY=policy,
            SEED=options.seed,
            SLO=json.dumps(_wall_slo(options)),
            **told,
        ),
    )


def _wall_slo(options: FleetOptions) -> dict[str, float]:
    """The SLO on the router's clock: simulated engines run `speed` times as fast as it."""
    scale = 1.0 if options.engine_urls else options.speed
    return {"ttft_ms": options.slo_ttft_ms / scale, "tpot_ms": options.slo_tpot_ms / scale}


def service_specs(options: FleetOptions, ports: Mapping[str, int], model: str) -> Sequence[ProcessSpec]:
    """Planner, GPU agent, cold-start service and bench."""
    state = options.state_dir.absolute()

    def spec(name: str, module: str, **env: object) -> ProcessSpec:
        return ProcessSpec(
            name, module, f"http://{HOST}:{ports[name]}", _env(name.upper(), options, ports[name], **env)
        )

    return [
        spec("planner", "tonnage_planner.main", **_planner(options, ports, model)),
        spec("agent", "tonnage_gpu_agent.main"),
        spec("coldstart", "tonnage_coldstart.main", CACHE_DIR=state / "cache"),
        spec("bench", "tonnage_bench.main", **_bench(options, ports)),
    ]


def _bench(options: FleetOptions, ports: Mapping[str, int]) -> dict[str, object]:
    """The bench's settings: it may load this machine and the engines that were given."""
    hosts = {host for url in options.engine_urls if (host := urlsplit(url).hostname)}
    return {
        "DATABASE": options.state_dir.absolute() / "bench.sqlite",
        "PLANNER_URL": f"http://{HOST}:{ports['planner']}",
        "TARGETS": json.dumps(sorted({HOST, "localhost", "::1"} | hosts)),
    }


def _planner(options: FleetOptions, ports: Mapping[str, int], model: str) -> dict[str, object]:
    """The planner's settings. Beside engines that are scaled its time is theirs, and it forecasts."""
    told: dict[str, object] = {
        "ROUTER_URL": f"http://{HOST}:{ports['admin']}",
        "AGENT_URLS": json.dumps([f"http://{HOST}:{ports['agent']}"]),
        "COLDSTART_URLS": json.dumps([f"http://{HOST}:{ports['coldstart']}"]),
        "SUPERVISOR_URL": f"http://{HOST}:{ports['fleet']}",
        "ACTION_TOKEN_SHA256": hashlib.sha256(options.console_token.encode()).hexdigest()
        if options.console_token
        else "",
    }
    if options.max_engines is None:
        endpoints = [{"url": url, "model": model} for url in engine_urls(options, ports)]
        return {**told, "ENDPOINTS": json.dumps(endpoints)}
    policy = {
        "model": options.model,
        "gpu": options.gpu,
        "min_replicas": options.engines,
        "max_replicas": options.max_engines,
        "slo_ttft_ms": options.slo_ttft_ms,
        "slo_tpot_ms": options.slo_tpot_ms,
        "start_s": options.start_s,
        "scale_down_after_s": options.scale_down_after_s,
    }
    return told | {
        "ENDPOINTS_FILE": options.endpoints_file,
        "POOLS": json.dumps({model: policy}),
        "TIME_SCALE": options.speed,
        "SCRAPE_INTERVAL_S": PLANNER_LOOK_S * options.speed,
        "STALE_AFTER_S": PLANNER_STALE_S * options.speed,
    }


def _env(service: str, options: FleetOptions, port: int, **values: object) -> dict[str, str]:
    named = {"HOST": HOST, "PORT": port, "LOG_LEVEL": options.log_level, **values}
    return {f"TONNAGE_{service}_{key}": str(value) for key, value in named.items()}
