"""The GPU benchmark's script runs on the CPU device and without the service's libraries."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "benchmarks" / "coldstart" / "gpu_load.py"


def test_the_script_measures_every_method_and_finds_the_bytes_equal(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    sizes = ["--gib", "0.02", "--cold-gib", "0.01", "--shards", "2", "--hidden", "512", "--rounds", "1"]
    places = ["--folder", str(tmp_path / "m"), "--out", str(out)]
    command = [
        sys.executable,
        str(SCRIPT),
        "--device",
        "cpu",
        *sizes,
        "--shapes",
        "2_4_1",
        "--cold-shapes",
        "2_4_1",
        *places,
    ]
    subprocess.run(command, check=True, capture_output=True)
    document = json.loads(out.read_text())
    assert document["byte_equal"] is True
    assert document["damage_found"] is True
    assert document["first_load"]["report"]["verified"] is True
    parts = document["parts"]
    assert {"safetensors", "plain_ring_2_4", "tonnage_verified_2_4_1", "tonnage_unchecked_2_4_1"} <= parts[
        "warm"
    ].keys()
    assert {"tonnage_direct_2_4_1", "disk_direct_2_4"} <= parts["cold"].keys()
    assert all(one["gbps"] > 0 for part in parts.values() for one in part.values())
    assert all(document["ratios"].values())


def test_a_task_over_its_limit_costs_that_task_alone(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--gib", "4", "--cold-gib", "0", "--hidden", "512"]
    limits = ["--make-limit-s", "0.02", "--folder", str(tmp_path / "m"), "--out", str(out)]
    done = subprocess.run([*command, *limits], check=True, capture_output=True, text=True)
    problems = json.loads(out.read_text())["problems"]
    assert [(one["event"], one["task"]) for one in problems] == [("timed_out", "make")], done.stdout


def test_the_loader_needs_neither_the_service_nor_the_command_line() -> None:
    code = (
        "import sys, tonnage_coldstart.loader.loading;"
        "loaded = {name.split('.')[0] for name in sys.modules};"
        "print(sorted(loaded & {'fastapi', 'pydantic', 'orjson', 'yaml', 'prometheus_client'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_two_ranks_read_their_bytes_beside_a_broadcast(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    sizes = ["--gib", "0.02", "--shards", "2", "--hidden", "512", "--rounds", "1", "--threads", "2"]
    command = [sys.executable, str(SCRIPT.with_name("tp_load.py")), "--device", "cpu", *sizes, "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    document = json.loads(out.read_text())
    assert document["byte_equal"] is True
    assert document["variants"].keys() >= {"shards_verified", "broadcast_unchecked", "everything_verified"}
    assert all(kept < 0.55 * document["bytes"] for kept in document["kept_bytes"])
    assert all(read < 0.8 * document["bytes"] for read in document["read_bytes"])
