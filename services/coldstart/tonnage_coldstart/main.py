"""`python -m tonnage_coldstart.main [SETTINGS.yaml]`: reads the environment once, opens the cache, serves."""

import logging
import os
import sys

import uvloop

from tonnage_coldstart.app import Ports, build_app
from tonnage_coldstart.settings import ColdstartSettings
from tonnage_core.errors import BadInputError, TonnageError
from tonnage_runtime.arguments import settings_file
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.http_app import bind, serve
from tonnage_runtime.logging import configure_logging
from tonnage_runtime.metrics import new_registry
from tonnage_runtime.settings import load_settings
from tonnage_runtime.store_url import open_store


async def run(settings: ColdstartSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    sock = bind(settings.host, settings.port)
    clock = SystemClock()
    store = open_store(settings.store_url, clock) if settings.store_url else None
    app = build_app(settings, Ports(clock, new_registry(), store))
    host, port = sock.getsockname()[:2]
    logging.getLogger("tonnage.coldstart").info("listening", extra={"host": host, "port": port})
    await serve(app, sock, drain_timeout_s=settings.drain_timeout_s, tls=settings.tls)


def main() -> int:
    """Exit code 0 after a clean stop, 2 for bad settings, 1 when the service could not start."""
    try:
        file = settings_file("python -m tonnage_coldstart.main", __doc__, sys.argv[1:])
        settings = load_settings(ColdstartSettings, "coldstart", os.environ, file)
        configure_logging("coldstart", settings.log_level)
        uvloop.run(run(settings))
    except TonnageError as error:
        print(f"tonnage-coldstart: {error}", file=sys.stderr)  # noqa: T201 - before logging is configured
        return 2 if isinstance(error, BadInputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
