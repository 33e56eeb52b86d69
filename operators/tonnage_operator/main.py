"""`python -m tonnage_operator.main [--release] [SETTINGS.yaml]`: reads the environment once, builds adapters, serves.

With `--release` it takes its finalizers and its marks on nodes away and ends: before a deinstallation.
"""

import logging
import os
import sys
from pathlib import Path

import uvloop

from tonnage_core.errors import TonnageError
from tonnage_operator.adapters.coldstart_http import HttpColdstart
from tonnage_operator.adapters.engine_http import HttpEngines
from tonnage_operator.adapters.http import Caller
from tonnage_operator.adapters.planner_http import HttpPlanner
from tonnage_operator.app import Ports, build_app
from tonnage_operator.settings import OperatorSettings
from tonnage_operator.uninstall import release
from tonnage_runtime.access import OwnToken
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.http_app import bind, serve
from tonnage_runtime.kube import KubeClient, configuration
from tonnage_runtime.logging import configure_logging
from tonnage_runtime.metrics import new_registry
from tonnage_runtime.settings import load_settings


def ports_of(settings: OperatorSettings) -> Ports:
    """The real adapters."""
    caller = Caller(settings.call_timeout_s)
    token = OwnToken(settings.api_token_file) if settings.api_token_file else None
    inside = Caller(settings.call_timeout_s, token)
    return Ports(
        login=lambda: configuration(settings.kubeconfig),
        engines=HttpEngines(caller),
        coldstart=HttpColdstart(inside),
        planner=HttpPlanner(inside, settings.planner_url),
        clock=SystemClock(),
        registry=new_registry(),
    )


async def run(settings: OperatorSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    sock = bind(settings.host, settings.port)
    app = build_app(settings, ports_of(settings))
    host, port = sock.getsockname()[:2]
    logging.getLogger("tonnage.operator").info("listening", extra={"host": host, "port": port})
    await serve(app, sock, drain_timeout_s=settings.drain_timeout_s)


def release_all(settings: OperatorSettings) -> int:
    """Take finalizers and marks away; 1 when some could not be."""
    client = KubeClient(configuration(settings.kubeconfig), agent="tonnage-operator")
    done = release(client)
    client.close()
    extra = {"finalizers": done.finalizers, "nodes": done.nodes, "failed": done.failed}
    logging.getLogger("tonnage.operator").info("released", extra=extra)
    return 1 if done.failed else 0


def main() -> int:
    """Exit code 0 after a clean stop, 1 when a release is not whole, 2 with one line when nothing could start."""
    try:
        words = [word for word in sys.argv[1:] if word != "--release"]
        settings = load_settings(OperatorSettings, "operator", os.environ, Path(words[0]) if words else None)
        configure_logging("operator", settings.log_level)
        if "--release" in sys.argv[1:]:
            return release_all(settings)
        uvloop.run(run(settings))
    except TonnageError as error:
        print(f"tonnage-operator: {error}", file=sys.stderr)  # noqa: T201 - before logging is configured
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
