"""`python -m tonnage_router.main`: read the environment once, listen, run.

Settings are TONNAGE_ROUTER_* in the environment; TONNAGE_ROUTER_CONFIG may name a YAML file of them, and
OpenTelemetry's own variables say where traces go.
"""

import gc
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import uvloop

from tonnage_core.errors import BadInputError, TonnageError
from tonnage_router.access_log import AccessLog
from tonnage_router.adapters.endpoint_file import read_endpoints
from tonnage_router.gateway import Gateway
from tonnage_router.metrics import RouterMetrics
from tonnage_router.service import run
from tonnage_router.settings import RouterSettings
from tonnage_router.trace_settings import with_standard
from tonnage_router.worker_channel import WorkerChannel
from tonnage_router.workers import run_workers
from tonnage_runtime.arguments import no_arguments
from tonnage_runtime.http_app import bind
from tonnage_runtime.logging import configure_logging
from tonnage_runtime.metrics import new_registry
from tonnage_runtime.open_files import raise_open_file_limit
from tonnage_runtime.setting_table import help_text
from tonnage_runtime.settings import load_settings

CONFIG = "TONNAGE_ROUTER_CONFIG"
"""Path of a YAML file of settings; read beside the environment."""


def settings_from(environ: Mapping[str, str]) -> RouterSettings:
    """Settings of the environment and of the file it names; the endpoint file's endpoints are added."""
    rest = {name: value for name, value in environ.items() if name != CONFIG}
    config = environ.get(CONFIG)
    settings = with_standard(load_settings(RouterSettings, "router", rest, Path(config) if config else None), environ)
    if settings.endpoints_file is not None:
        found = read_endpoints(settings.endpoints_file)
        settings = settings.model_copy(update={"endpoints": [*settings.endpoints, *found]})
    return settings


def main() -> int:
    """Run the router; exit 2 on bad settings or a taken port, with one line."""
    try:
        listed = help_text(RouterSettings, "TONNAGE_ROUTER_")
        no_arguments("python -m tonnage_router.main", __doc__, sys.argv[1:], listed)
        settings = settings_from(os.environ)
    except TonnageError as error:
        return _complain(error)
    return run_workers(settings, serve_one) if settings.workers > 1 else serve_one(settings)


def _complain(error: TonnageError) -> int:
    sys.stderr.write(f"tonnage router: {error}\n")
    return 2


def serve_one(settings: RouterSettings, channel: WorkerChannel | None = None) -> int:
    """One process: listen and run until told to stop. `channel`: its end to the router's other workers."""
    configure_logging("router", settings.log_level)
    raise_open_file_limit()
    registry = new_registry()
    try:
        data = bind(settings.host, settings.port, reuse_port=settings.workers > 1)
        admin = bind(settings.host, settings.admin_port)
        gateway = Gateway(settings, RouterMetrics(registry), AccessLog(settings.access_log))
    except TonnageError as error:
        return _complain(error)
    gc.freeze()  # modules and settings live as long as the process: collections skip them
    gc.set_threshold(10_000, 20, 50)  # a request leaves no cycles behind; fewer collections, shorter pauses
    try:
        uvloop.run(run(gateway, registry, data, admin, channel))
    except BadInputError as error:
        return _complain(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
