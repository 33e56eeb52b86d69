"""The GPU benchmark's script runs on the CPU device and without the service's libraries."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "benchmarks" / "coldstart" / "gpu_load.py"


def test_the_script_measures_every_method_and_finds_the_bytes_equal(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    sizes = ["--gib", "0.03", "--shards", "2", "--hidden", "512", "--rounds", "1", "--threads", "2"]
    command = [
        sys.executable,
        str(SCRIPT),
        "--device",
        "cpu",
        *sizes,
        "--folder",
        str(tmp_path / "m"),
        "--out",
        str(out),
    ]
    subprocess.run(command, check=True, capture_output=True)
    document = json.loads(out.read_text())
    assert document["byte_equal"] is True
    assert document["first_load"]["verified"] is True
    assert {"safetensors", "plain_ring_2", "tonnage_verified_2", "tonnage_unchecked_2"} <= document["warm"].keys()
    assert all(figures["gbps"] > 0 for part in ("warm", "cold") for figures in document[part].values())


def test_the_loader_needs_neither_the_service_nor_the_command_line() -> None:
    code = (
        "import sys, tonnage_coldstart.loader.loading;"
        "loaded = {name.split('.')[0] for name in sys.modules};"
        "print(sorted(loaded & {'fastapi', 'pydantic', 'orjson', 'yaml', 'prometheus_client'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
