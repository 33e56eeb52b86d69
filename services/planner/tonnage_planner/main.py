"""`python -m tonnage_planner.main [SETTINGS.yaml]`: reads the environment once, builds the adapters, serves."""

import logging
import os
import sys

import uvloop

from tonnage_core.errors import TonnageError
from tonnage_planner.adapters.endpoints_static import FileEndpoints, StaticEndpoints
from tonnage_planner.adapters.scrape_http import HttpScraper
from tonnage_planner.app import Ports, build_app
from tonnage_planner.capacity import capacity_of
from tonnage_planner.hooks.serving import tls_of
from tonnage_planner.ports import EndpointSource
from tonnage_planner.settings import PlannerSettings
from tonnage_runtime.access import OwnToken
from tonnage_runtime.arguments import settings_file
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.errors import SettingsError
from tonnage_runtime.http_app import bind, serve
from tonnage_runtime.logging import configure_logging
from tonnage_runtime.metrics import new_registry
from tonnage_runtime.settings import load_settings
from tonnage_runtime.store_url import open_store


def endpoint_source(settings: PlannerSettings) -> EndpointSource:
    """The list or the file; raises `SettingsError` when both are given."""
    if settings.endpoints_file is None:
        return StaticEndpoints(settings.endpoints)
    if settings.endpoints:
        raise SettingsError("TONNAGE_PLANNER_ENDPOINTS and TONNAGE_PLANNER_ENDPOINTS_FILE are both set: keep one")
    return FileEndpoints(settings.endpoints_file)


async def run(settings: PlannerSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    source = endpoint_source(settings)
    for pool in ("default", *settings.pools):
        settings.policy_of(pool)
    for pool in settings.pools:
        capacity_of(pool, settings.hardware_of(pool))
    tls_of(settings)
    sock = bind(settings.host, settings.port)
    scraper = HttpScraper(
        timeout_s=settings.scrape_timeout_s,
        body_limit_bytes=settings.scrape_body_limit_bytes,
        concurrency=settings.scrape_concurrency,
        token=OwnToken(settings.api_token_file) if settings.api_token_file else None,
        ca_file=settings.api_ca_file,
    )
    async with scraper:
        clock = SystemClock()
        store = open_store(settings.store_url, clock)
        app = build_app(settings, Ports(source, scraper, clock, new_registry(), store, poster=scraper))
        host, port = sock.getsockname()[:2]
        logging.getLogger("tonnage.planner").info("listening", extra={"host": host, "port": port})
        await serve(app, sock, drain_timeout_s=settings.drain_timeout_s, tls=settings.tls)
        await store.close()


def main() -> int:
    """Exit code 0 after a clean stop, 2 with one line when the service could not start."""
    try:
        file = settings_file("python -m tonnage_planner.main", __doc__, sys.argv[1:])
        settings = load_settings(PlannerSettings, "planner", os.environ, file)
        configure_logging("planner", settings.log_level)
        logging.getLogger("httpx").setLevel(logging.WARNING)
        uvloop.run(run(settings))
    except TonnageError as error:
        print(f"tonnage-planner: {error}", file=sys.stderr)  # noqa: T201 - before logging is configured
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
