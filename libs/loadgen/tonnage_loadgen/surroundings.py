"""What a run was measured on: versions, host, processor, load of the machine at its start."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tonnage_loadgen.discover import Headers
from tonnage_loadgen.errors import TargetError
from tonnage_loadgen.plain_http import ask
from tonnage_loadgen.target import parse_target


async def surroundings(url: str, headers: Headers = ()) -> dict[str, Any]:
    """The record of the generator's host and of the server's version, null where it does not say."""
    return {
        "tonnage": version("tonnage"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "host": platform.node(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "load_average_1min": round(os.getloadavg()[0], 2),
        "server_version": await _server_version(url, headers),
    }


def _processor() -> str | None:
    """The processor's name as Linux has it; None elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


async def _server_version(url: str, headers: Headers) -> str | None:
    try:
        document = (await ask(parse_target(url), "/version", headers=headers)).document()
    except TargetError:
        return None
    found = document.get("version") if isinstance(document, dict) else None
    return found if isinstance(found, str) else None
