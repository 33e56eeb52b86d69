"""`python -m tonnage_operator.main [--release] [SETTINGS.yaml]`: reads the environment once, builds adapters, serves.

With `--release` it takes its finalizers and its marks on nodes away and ends: before a deinstallation.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import uvloop
from kubernetes.client import Configuration

from tonnage_core.errors import TonnageError
from tonnage_operator.adapters.coldstart_http import HttpColdstart
from tonnage_operator.adapters.engine_http import HttpEngines
from tonnage_operator.adapters.http import Caller
from tonnage_operator.adapters.planner_http import HttpPlanner
from tonnage_operator.app import Ports, build_app, lease_rules
from tonnage_operator.leader import Leader
from tonnage_operator.settings import OperatorSettings
from tonnage_operator.uninstall import release
from tonnage_runtime.access import OwnToken
from tonnage_runtime.arguments import OneLineParser, add_settings_file
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.http_app import bind, serve
from tonnage_runtime.kube import KubeClient, KubeError, configuration
from tonnage_runtime.logging import configure_logging
from tonnage_runtime.metrics import new_registry
from tonnage_runtime.settings import load_settings

RELEASE_S = 120.0
"""Nobody acts for so long after a release has begun."""


def ports_of(settings: OperatorSettings) -> Ports:
    """The real adapters."""
    caller = Caller(settings.call_timeout_s)
    token = OwnToken(settings.api_token_file) if settings.api_token_file else None
    planner = Caller(settings.call_timeout_s, token, settings.api_ca_file)
    coldstart = Caller(settings.call_timeout_s, token, settings.api_ca_file, settings.coldstart_tls_name or None)
    return Ports(
        login=lambda: configuration(settings.kubeconfig),
        engines=HttpEngines(caller),
        coldstart=HttpColdstart(coldstart),
        planner=HttpPlanner(planner, settings.planner_url),
        clock=SystemClock(),
        registry=new_registry(),
    )


async def run(settings: OperatorSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    sock = bind(settings.host, settings.port)
    app = build_app(settings, ports_of(settings))
    host, port = sock.getsockname()[:2]
    logging.getLogger("tonnage.operator").info("listening", extra={"host": host, "port": port})
    await serve(app, sock, drain_timeout_s=settings.drain_timeout_s, tls=settings.tls)


def release_all(settings: OperatorSettings, login: Callable[[], Configuration] | None = None) -> int:
    """Take finalizers and marks away; 1 when some could not be."""
    found = login() if login is not None else configuration(settings.kubeconfig)
    client = KubeClient(found, agent="tonnage-operator")
    stop_others(client, settings)
    done = release(client)
    client.close()
    extra = {"finalizers": done.finalizers, "nodes": done.nodes, "failed": done.failed}
    logging.getLogger("tonnage.operator").info("released", extra=extra)
    return 1 if done.failed else 0


def stop_others(client: KubeClient, settings: OperatorSettings) -> None:
    """An operator that runs would set at once what is taken away here: it is still there before a deinstallation. So
    its lease is taken, for long enough that it is gone when the time is over, and its last action waited for."""
    rules = lease_rules(settings)
    mine = replace(rules, identity=f"release-{rules.identity}", lasts_s=RELEASE_S)
    try:
        if settings.leader_election and Leader(client, mine, SystemClock()).seize():
            time.sleep(rules.lasts_s - rules.renew_s)
    except KubeError as error:
        logging.getLogger("tonnage.operator").warning("lease not taken", extra={"reason": str(error)})


def _words(arguments: Sequence[str]) -> argparse.Namespace:
    """`release` and `settings`; `--help` prints and exits 0, anything else raises `ArgumentsError`."""
    parser = OneLineParser("python -m tonnage_operator.main", __doc__)
    parser.add_argument("--release", action="store_true", help="take finalizers and marks on nodes away, and end")
    add_settings_file(parser)
    return parser.parse_args(arguments)


def main() -> int:
    """Exit code 0 after a clean stop, 1 when a release is not whole, 2 with one line when nothing could start."""
    try:
        words = _words(sys.argv[1:])
        settings = load_settings(OperatorSettings, "operator", os.environ, words.settings)
        configure_logging("operator", settings.log_level)
        if words.release:
            return release_all(settings)
        uvloop.run(run(settings))
    except TonnageError as error:
        print(f"tonnage-operator: {error}", file=sys.stderr)  # noqa: T201 - before logging is configured
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
