"""The short version of `make chaos`: real processes, four faults, and no request lost beyond the promises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_fault_costs_more_than_its_part_promises(tmp_path: Path) -> None:
    out = tmp_path / "chaos.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "chaos" / "run.py"), "--short", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(out.read_text())
    assert found["beyond_promise"] == 0 and found["faults"] == 4
    assert all(row["sent"] > 0 for row in found["rows"])
