"""The layer rule holds: import-linter over the whole tree."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_imports_go_one_way() -> None:
    tool = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([tool, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
