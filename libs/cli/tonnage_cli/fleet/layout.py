"""Which processes make a local fleet, with their ports and environment. Pure: options in, process specs out.

Ports count up from `port_base`: router, its admin port, planner, GPU agent, cold start, the fleet's own status page,
two for the router of the policy compared with, from +10 the engines, and then two for each engine's KV events. Base 0
takes free ports.
"""

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tonnage_runtime.errors import PortInUseError
from tonnage_runtime.ports import free_ports

HOST = "127.0.0.1"
FIXED = ("router", "admin", "planner", "agent", "coldstart", "fleet", "compared_router", "compared_admin")
FIRST_ENGINE = 10
COMPARED_WITH = "round_robin"


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


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One supervised process: a module to run, its environment on top of ours, and where it says that it is ready."""

    name: str
    module: str
    url: str
    env: Mapping[str, str] = field(default_factory=dict)
    ready_path: str = "/readyz"


def allocate_ports(options: FleetOptions) -> dict[str, int]:
    """A free port for each part; `PortInUseError` names the first that is taken, before anything starts."""
    engines = range(0 if options.engine_urls else options.engines)
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
                raise PortInUseError(HOST, port) from error
    finally:
        for sock in held:
            sock.close()
    return dict(wanted)


def urls(options: FleetOptions, ports: Mapping[str, int]) -> dict[str, str | list[str]]:
    """Every URL a user may want, by name; `engines` is a list."""
    named: dict[str, str | list[str]] = {
        name: f"http://{HOST}:{ports[name]}" for name in ("router", "admin", "planner", "agent", "coldstart", "fleet")
    }
    named["engines"] = engine_urls(options, ports)
    return named


def engine_urls(options: FleetOptions, ports: Mapping[str, int]) -> list[str]:
    """The given engines, or those this fleet starts."""
    if options.engine_urls:
        return [url.rstrip("/") for url in options.engine_urls]
    return [f"http://{HOST}:{ports[f'engine-{i}']}" for i in range(options.engines)]


def engine_specs(options: FleetOptions, ports: Mapping[str, int]) -> list[ProcessSpec]:
    """The simulated engines; none when real ones are given."""
    if options.engine_urls:
        return []
    return [
        ProcessSpec(
            name=f"engine-{i}",
            module="tonnage_sim.main",
            url=f"http://{HOST}:{ports[f'engine-{i}']}",
            ready_path="/health",
            env=_env(
                "SIM",
                options,
                ports[f"engine-{i}"],
                MODEL=options.model,
                GPU=options.gpu,
                TIME_SCALE=options.speed,
                SEED=options.seed + i,
                **_published(options, ports, i),
            ),
        )
        for i in range(options.engines)
    ]


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
    rows: list[dict[str, object]] = [{"url": url, "model": model} for url in engine_urls(options, ports)]
    if options.kv_events and not options.engine_urls:
        for i, row in enumerate(rows):
            row |= {"kv_events_port": ports[f"events-{i}"], "kv_events_replay_port": ports[f"replays-{i}"]}
    return rows


def router_spec(
    options: FleetOptions, ports: Mapping[str, int], model: str, *, policy: str, compared: bool = False
) -> ProcessSpec:
    """The router that stays, or the one of the policy compared with."""
    port, admin = ("compared_router", "compared_admin") if compared else ("router", "admin")
    endpoints = _endpoints(options, ports, model)
    return ProcessSpec(
        name="compared-router" if compared else "router",
        module="tonnage_router.main",
        url=f"http://{HOST}:{ports[admin]}",
        env=_env(
            "ROUTER",
            options,
            ports[port],
            ADMIN_PORT=ports[admin],
            ENDPOINTS=json.dumps(endpoints),
            POLICY=policy,
            SEED=options.seed,
        ),
    )


def service_specs(options: FleetOptions, ports: Mapping[str, int], model: str) -> Sequence[ProcessSpec]:
    """Planner, GPU agent and cold-start service."""
    endpoints = json.dumps([{"url": url, "model": model} for url in engine_urls(options, ports)])
    cache = options.state_dir.absolute() / "cache"

    def spec(name: str, module: str, **env: object) -> ProcessSpec:
        return ProcessSpec(
            name, module, f"http://{HOST}:{ports[name]}", _env(name.upper(), options, ports[name], **env)
        )

    return [
        spec("planner", "tonnage_planner.main", ENDPOINTS=endpoints, ROUTER_URL=f"http://{HOST}:{ports['admin']}"),
        spec("agent", "tonnage_gpu_agent.main"),
        spec("coldstart", "tonnage_coldstart.main", CACHE_DIR=cache),
    ]


def _env(service: str, options: FleetOptions, port: int, **values: object) -> dict[str, str]:
    named = {"HOST": HOST, "PORT": port, "LOG_LEVEL": options.log_level, **values}
    return {f"TONNAGE_{service}_{key}": str(value) for key, value in named.items()}
