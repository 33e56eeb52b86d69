"""The bench and the planner before a real engine: a sweep without a failed request, and the planner, told two of its
points, about the one between. Full rounds with their limits are benchmarks/bench/real_engine.py.

Engines are named in TONNAGE_E2E_ENGINES; the model's files are in TONNAGE_E2E_MODEL_DIR.
"""

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3000)]

URLS = [url for url in re.split(r"[,\s]+", os.environ.get("TONNAGE_E2E_ENGINES", "")) if url]
MODEL_DIR = os.environ.get("TONNAGE_E2E_MODEL_DIR", "")
CARD = {
    "schema": "tonnage.gpu_profile/1",
    "name": "CPU core",
    "memory_bytes": 1 << 30,
    "ceilings": {"hbm_read_gbps": 10.0, "bf16_tflops": 0.05},
}
CALIBRATING, BETWEEN = (1, 8), 4


def tonnage(*arguments: str) -> dict[str, Any]:
    code = "from tonnage_cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--json"], capture_output=True, text=True, timeout=2500, check=False
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def one_run(users: int, points: Path) -> tuple[dict[str, int], list[dict[str, str]]]:
    """The counts of a closed loop of so many users, and its bench points."""
    document = tonnage(
        *("bench", "--url", URLS[0], "--prompt-format", "tokens", "--points", str(points), "--seed", str(users)),
        *("--input-tokens", "uniform:100-300", "--output-tokens", "uniform:16-48"),
        *("--users", str(users), "--requests", str(max(24, 4 * users)), "--gpu", str(CARD["name"])),
        *("--catalogue-model", Path(MODEL_DIR).name, "--engine", "vllm:0.32.0", "--precision", "fp32"),
    )
    return document["requests"], list(csv.DictReader(points.read_text().splitlines()))


@pytest.mark.skipif(not MODEL_DIR, reason="opt-in: TONNAGE_E2E_MODEL_DIR names the model's files")
def test_the_planner_is_calibrated_on_a_sweep_of_the_bench(
    tmp_path: Path, told: Callable[[str, str], None], saved: Callable[[str, Any], None]
) -> None:
    few, card = tmp_path / "few.csv", tmp_path / "card.json"
    card.write_text(json.dumps(CARD))
    users = sorted((*CALIBRATING, BETWEEN))
    runs, rows = zip(*(one_run(number, tmp_path / f"{number}.csv") for number in users), strict=True)
    points = [row for of_run in rows for row in of_run]
    with few.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(points[0]))
        writer.writeheader()
        writer.writerows(row for row in points if int(row["concurrency"]) in CALIBRATING)
    here = [row for row in points if int(row["concurrency"]) == BETWEEN]
    seen = {row["metric"]: float(row["value"]) for row in here}
    said = tonnage(
        *("predict", "--model", MODEL_DIR, "--gpu", str(card), "--engine", "vllm:0.32.0", "--precision", "fp32"),
        *("--isl", here[0]["isl"], "--osl", here[0]["osl"], "--concurrency", str(BETWEEN), "--calibrate", str(few)),
    )
    errors = {name: round(said[name]["value"] / seen[name] - 1, 3) for name in ("ttft_ms", "tpot_ms")}
    saved("planner/calibrated", {"users": users, "seen": seen, "errors": errors, "class": said["class"]})
    sent, ok = sum(run["sent"] for run in runs), sum(run["ok"] for run in runs)
    told("bench, a sweep", f"{ok} of {sent} ok at {users} users")
    told("planner from two points", f"at {BETWEEN} users TPOT {errors['tpot_ms']:+.1%}, TTFT {errors['ttft_ms']:+.1%}")
    assert sent == ok > 0
    assert {int(row["concurrency"]) for row in points} == set(users)
