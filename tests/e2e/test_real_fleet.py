"""`tonnage up` in front of real engines: the trace's sample through the router under both policies, no error.

Engines are named in TONNAGE_E2E_ENGINES, comma- or space-separated.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "mooncake_sample.jsonl"
URLS = [url for url in re.split(r"[,\s]+", os.environ.get("TONNAGE_E2E_ENGINES", "")) if url]
REQUESTS = 100


def test_the_trace_goes_through_the_router_over_real_engines_without_an_error(
    tmp_path: Path, told: Callable[[str, str], None], saved: Callable[[str, Any], None]
) -> None:
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
    for policy, document in report["policies"].items():
        figures = {
            name: document[name] for name in ("requests", "prefix", "output_tokens", "ttft_ms", "tpot_ms", "notes")
        }
        saved(f"fleet/{policy}", figures)
        ok, hits, ceiling = (
            document["requests"]["ok"],
            figures["prefix"]["hit_tokens"],
            figures["prefix"]["ceiling_hit_tokens"],
        )
        told(f"`tonnage up`, policy {policy}", f"{ok} of {REQUESTS} ok, {hits} cached tokens of {ceiling} possible")
        assert document["requests"] == {"sent": REQUESTS, "ok": REQUESTS, "errors": 0}, policy
        assert document["prefix"]["hit_tokens"] is not None, f"{policy}: start engines with cached tokens in usage"
    prefix, spread = (report["policies"][name]["prefix"]["hit_tokens"] for name in ("prefix", "round_robin"))
    assert prefix >= spread
