"""`tonnage up` in front of real engines: the trace's sample through the router under both policies, no error.

Engines are named in TONNAGE_E2E_ENGINES, comma- or space-separated. TONNAGE_E2E_FLEET_REPORT names a file for
the report.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "mooncake_sample.jsonl"
URLS = [url for url in re.split(r"[,\s]+", os.environ.get("TONNAGE_E2E_ENGINES", "")) if url]
REQUESTS = 100


def test_the_trace_goes_through_the_router_over_real_engines_without_an_error(tmp_path: Path) -> None:
    engines = [part for url in URLS for part in ("--engine-url", url)]
    done = subprocess.run(
        [
            sys.executable, "-c", "from tonnage_cli.main import main; main()", "up", "--once", "--json",
            *engines, "--replay", str(SAMPLE), "--limit", str(REQUESTS), "--max-input", "3500", "--speed", "0.5",
            "--port-base", "0",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=3500, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    if target := os.environ.get("TONNAGE_E2E_FLEET_REPORT"):
        report.pop("urls")
        for document in (report, *report["policies"].values()):
            document["replay"].pop("url")
        Path(target).write_text(json.dumps(report, indent=1) + "\n")
    for policy, document in report["policies"].items():
        assert document["requests"] == {"sent": REQUESTS, "ok": REQUESTS, "errors": 0}, policy
        assert document["prefix"]["hit_tokens"] is not None, f"{policy}: start engines with cached tokens in usage"
    prefix, spread = (report["policies"][name]["prefix"]["hit_tokens"] for name in ("prefix", "round_robin"))
    assert prefix >= spread
