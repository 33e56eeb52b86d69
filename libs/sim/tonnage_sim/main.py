"""`python -m tonnage_sim.main`: one simulated engine, set up by TONNAGE_SIM_* in the environment or by options."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence

import uvloop

from tonnage_core.errors import TonnageError
from tonnage_runtime.arguments import OneLineParser
from tonnage_runtime.catalogue import load_gpu, load_model
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.http_app import bind
from tonnage_runtime.logging import configure_logging
from tonnage_runtime.metrics import new_registry
from tonnage_runtime.settings import load_settings
from tonnage_sim.app import Ports, build_app
from tonnage_sim.http1.server import Server
from tonnage_sim.settings import SimSettings

logger = logging.getLogger(__name__)

CRASHED = 134
"""Exit code of the crash fault: what a process that aborts has."""


async def serve(settings: SimSettings) -> None:
    """Serve until SIGTERM or SIGINT; requests in progress get `drain_timeout_s` to end."""
    ports = Ports(
        clock=SystemClock(),
        registry=new_registry(),
        shape=load_model(settings.model),
        gpu=load_gpu(settings.gpu),
        crash=lambda: os._exit(CRASHED),
    )
    simulator = build_app(settings, ports)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = Server(simulator)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(settings.start_s / settings.time_scale):
            await stop.wait()
    sock = bind(settings.host, settings.port)
    async with simulator.running():
        await server.start(sock)
        logger.info("ready", extra={"url": "http://{}:{}".format(*sock.getsockname()[:2]), "model": settings.model})
        await stop.wait()
        logger.info("stopping")
        await server.stop(settings.drain_timeout_s)


def with_options(environ: Mapping[str, str], arguments: Sequence[str]) -> dict[str, str]:
    """`environ` with the command line's options on top: `--time-scale 4` is TONNAGE_SIM_TIME_SCALE=4."""
    parser = OneLineParser("python -m tonnage_sim.main", __doc__)
    for name, field in SimSettings.model_fields.items():
        parser.add_argument(
            "--" + name.replace("_", "-"), metavar="VALUE", help=(field.description or "").replace("%", "%%")
        )
    given = {k: v for k, v in vars(parser.parse_args(arguments)).items() if v is not None}
    return {**environ, **{f"TONNAGE_SIM_{name.upper()}": value for name, value in given.items()}}


def main(arguments: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> int:
    """Run one simulated engine; returns the exit code."""
    try:
        settings = load_settings(SimSettings, "sim", with_options(environ, arguments))
        configure_logging("sim", settings.log_level)
        uvloop.run(serve(settings))
    except TonnageError as error:
        sys.stderr.write("tonnage-sim: " + " ".join(str(error).split()) + "\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
