"""A command run to its end: signals go on to it, and something is done once it is ready or has ended."""

import http.client
import signal
import subprocess
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tonnage_core.errors import BadInputError

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WANTED = (0, -signal.SIGTERM, -signal.SIGINT)
"""Ends of a command that was not failing."""
ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Command:
    """Arguments and environment; `ready` is an address that answers 200 when the command serves, asked each
    `every_s` seconds."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    ready: str | None = None
    every_s: float = 2.0


def run_command(command: Command, then: Callable[[], None]) -> int:
    """The command's exit code, 128 + n after signal n. `then` is called at most once: when `ready` answers or, without
    it, at an end that was no failure.

    Raises `BadInputError` when the command cannot be started.
    """
    try:
        child = subprocess.Popen(list(command.arguments), env=dict(command.environment))
    except OSError as error:
        raise BadInputError(f"{command.arguments[0]}: cannot be started: {error.strerror}") from error
    before = {number: signal.signal(number, lambda n, _: child.send_signal(n)) for number in PASSED_ON}
    try:
        ready = command.ready
        while (code := _ended(child, command.every_s if ready else None)) is None:
            if ready and _answers(ready):
                then()
                ready = None
        if command.ready is None and code in WANTED:
            then()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _ended(child: "subprocess.Popen[bytes]", timeout_s: float | None) -> int | None:
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None


def _answers(url: str) -> bool:
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=ANSWER_S)
    try:
        connection.request("GET", parts.path or "/")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
