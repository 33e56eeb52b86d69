"""The `tonnage` command of this environment, as these benchmarks call it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

TONNAGE = str(Path(sys.executable).with_name("tonnage"))


def command(*arguments: str) -> dict[str, Any]:
    """The JSON document of a `tonnage` command."""
    done = subprocess.run([TONNAGE, *arguments, "--json"], capture_output=True, text=True, check=False)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise SystemExit(
            f"tonnage {' '.join(arguments)} ended with {done.returncode}, {error}: {done.stderr}"
        ) from None
    return found
