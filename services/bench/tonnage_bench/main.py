"""`python -m tonnage_bench.main [SETTINGS.yaml]`: reads the environment once, opens the database, serves."""

import logging
import os
import sys

import uvloop

from tonnage_bench.adapters.step_process import StepProcess
from tonnage_bench.app import Ports, build_app
from tonnage_bench.ports import StepQueue
from tonnage_bench.settings import BenchSettings
from tonnage_core.errors import BadInputError, TonnageError
from tonnage_runtime.arguments import settings_file
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.http_app import bind, serve
from tonnage_runtime.logging import configure_logging
from tonnage_runtime.metrics import new_registry
from tonnage_runtime.settings import load_settings

MESSAGE_LIFE_S = 300.0


def open_queue(settings: BenchSettings) -> StepQueue | None:
    """Celery's queue; None when runs are made here. Raises `BadInputError` when Celery is not installed."""
    if not settings.queue_url:
        return None
    try:
        from tonnage_bench.adapters.celery_queue import CeleryQueue
    except ImportError as error:
        raise BadInputError("a queue needs the bench extra: pip install 'tonnage[bench]'") from error
    return CeleryQueue(settings.queue_url, settings.queue_name, MESSAGE_LIFE_S)


async def run(settings: BenchSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    sock = bind(settings.host, settings.port)
    ports = Ports(SystemClock(), new_registry(), StepProcess(), open_queue(settings))
    app = build_app(settings, ports)
    host, port = sock.getsockname()[:2]
    logging.getLogger("tonnage.bench").info("listening", extra={"host": host, "port": port})
    await serve(app, sock, drain_timeout_s=settings.drain_timeout_s, tls=settings.tls)


def main() -> int:
    """Exit code 0 after a clean stop, 2 for bad settings or a damaged database, 1 when it could not start."""
    try:
        file = settings_file("python -m tonnage_bench.main", __doc__, sys.argv[1:])
        settings = load_settings(BenchSettings, "bench", os.environ, file)
        configure_logging("bench", settings.log_level)
        logging.getLogger("httpx").setLevel(logging.WARNING)
        uvloop.run(run(settings))
    except TonnageError as error:
        print(f"tonnage-bench: {error}", file=sys.stderr)  # noqa: T201 - before logging is configured
        return 2 if isinstance(error, BadInputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
