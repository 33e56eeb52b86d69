"""`make bench`: the short version of every benchmark, one after the other; each prints its own table.

A benchmark is `benchmarks/<area>/run.py`, or one of `MORE`, with its settings in YAML beside it; `--short` cuts sizes,
never the method.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MORE = ("router/quality.py", "router/gates.py")


def main() -> int:
    """Run all areas, or those named; 1 when one failed."""
    wanted = sys.argv[1:]
    found = [*HERE.glob("*/run.py"), *(HERE / name for name in MORE)]
    scripts = sorted(path for path in found if not wanted or path.parent.name in wanted)
    unknown = set(wanted) - {path.parent.name for path in scripts}
    if unknown:
        print(f"no benchmark named {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    failed = []
    for script in scripts:
        print(f"== {script.parent.name} {script.stem}", flush=True)
        if subprocess.run([sys.executable, str(script), "--short"], cwd=HERE.parent, check=False).returncode:
            failed.append(script.parent.name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
