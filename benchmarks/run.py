"""`make bench`: the short version of every benchmark, one after the other; each prints its own table.

A benchmark is `benchmarks/<area>/run.py` with its settings in YAML beside it; `--short` cuts sizes, never the method.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Run all areas, or those named; 1 when one failed."""
    wanted = sys.argv[1:]
    scripts = sorted(path for path in HERE.glob("*/run.py") if not wanted or path.parent.name in wanted)
    unknown = set(wanted) - {path.parent.name for path in scripts}
    if unknown:
        print(f"no benchmark named {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    failed = []
    for script in scripts:
        print(f"== {script.parent.name}", flush=True)
        if subprocess.run([sys.executable, str(script), "--short"], cwd=HERE.parent, check=False).returncode:
            failed.append(script.parent.name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
