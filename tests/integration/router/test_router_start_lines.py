"""What a router that starts says of itself in its log."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BARE = {name: value for name, value in os.environ.items() if not name.startswith(("TONNAGE_", "OTEL_"))}


@contextmanager
def lines(**settings: str) -> Iterator[Iterator[dict[str, Any]]]:
    """The log of a router on free ports, line by line."""
    given = {"PORT": "0", "ADMIN_PORT": "0", **settings}
    environ = {**BARE, **{f"TONNAGE_ROUTER_{name}": value for name, value in given.items()}}
    command = [sys.executable, "-m", "tonnage_router.main"]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield (json.loads(line) for line in process.stderr)
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()


def test_the_log_says_when_connections_are_taken_and_where() -> None:
    with lines(ENDPOINTS='[{"url": "http://127.0.0.1:1"}]') as log:
        said = next(line for line in log if line["msg"] == "ready")
        assert said["endpoints"] == 1
        with urllib.request.urlopen(said["url"] + "/v1/models", timeout=5) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(said["admin_url"] + "/healthz", timeout=5) as answer:
            assert answer.status == 200


def test_a_router_that_can_find_no_endpoint_says_so() -> None:
    with lines() as log:
        said = next(line for line in log if line["level"] == "warning")
        assert "no endpoints and no discovery" in said["msg"] and "TONNAGE_ROUTER_ENDPOINTS" in said["msg"]


def test_a_router_whose_endpoints_may_come_does_not_warn(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.yaml"
    file.write_text("endpoints: []\n")
    with lines(ENDPOINTS_FILE=str(file)) as log:
        before = []
        for line in log:
            if line["msg"] == "ready":
                break
            before.append(line["level"])
        assert "warning" not in before
