"""`make soak`: long traffic, overload, a herd, and a large fleet; what must stay flat is looked at throughout.

usage: python benchmarks/soak/run.py [--only steady overload herd scale] [--out RESULT.json]

SOAK_S in the environment sets the seconds of the steady part (1800), SOAK_RPS its requests a second. Exit code 1 when
something did not hold.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop
import yaml
from parts import PARTS

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Run the parts one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a minute of the steady part")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    arguments = parser.parse_args()
    settings = yaml.safe_load((HERE / "settings.yaml").read_text())
    settings["steady"]["seconds"] = float(
        os.environ.get("SOAK_S", 60 if arguments.short else settings["steady"]["seconds"])
    )
    settings["steady"]["rate_rps"] = float(os.environ.get("SOAK_RPS", settings["steady"]["rate_rps"]))
    found: dict[str, Any] = {}
    for name in arguments.only:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tonnage-soak-") as folder:
            found[name] = uvloop.run(PARTS[name](settings, Path(folder)))
        found[name]["wall_s"] = round(time.monotonic() - begun, 1)
        print(json.dumps({name: found[name]}, indent=1), flush=True)
    document = {
        "schema": "tonnage.soak/1",
        "date": time.strftime("%Y-%m-%d"),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "settings": settings,
        "holds": all(part["holds"] for part in found.values()),
        "parts": found,
    }
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if document["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
