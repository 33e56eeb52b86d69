"""`tonnage predict` and the latency rows of `tonnage accuracy`: documents, exit codes, one line for bad input."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tonnage_cli.main import run

MODEL = "meta-llama/Llama-3.1-8B"
BASE = ["predict", "--model", MODEL, "--gpu", "H100", "--engine", "vllm:0.19.0", "--isl", "1000", "--osl", "200"]
ROWS = Path(__file__).parents[2] / "golden" / "planner" / "latency_rows.csv"


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run([*arguments, "--json"])
    loaded: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, loaded


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(list(arguments)) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    return printed.err


def points(path: Path, *rows: dict[str, Any]) -> str:
    fields = ["id", "model", "config", "engine", "gpu", "isl", "osl", "concurrency", "metric", "value", "notes"]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def row(clients: int, metric: str, value: float, **more: Any) -> dict[str, Any]:
    asked = {"engine": "vllm", "gpu": "H100-SXM-80GB", "isl": 1000, "osl": 200, "concurrency": clients, "model": MODEL}
    return {"id": f"p{clients}.{metric}", "metric": metric, "value": value, **asked, **more}


def test_the_document_has_every_field_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, *BASE, "--concurrency", "16")
    assert code == 0 and found["schema"] == "tonnage.predict/1" and found["class"] == "derived"
    for name in ("ttft_ms", "tpot_ms", "output_tok_s"):
        assert found[name]["lo90"] < found[name]["value"] < found[name]["hi90"]
    assert all(set(step) == {"name", "formula", "value", "unit"} for step in found["steps"])


def test_a_table_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*BASE, "--concurrency", "16"]) == 0
    printed = capsys.readouterr().out
    assert "TTFT ms" in printed and "Derivation" in printed


def test_measured_points_calibrate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = points(
        tmp_path / "points.csv",
        row(1, "tpot_ms", 14.0),
        row(1, "ttft_ms", 70.0),
        row(64, "tpot_ms", 30.0),
        row(64, "ttft_ms", 400.0, notes="never, read"),
    )
    _, plain = document(capsys, *BASE, "--concurrency", "8")
    code, found = document(capsys, *BASE, "--concurrency", "8", "--calibrate", file)
    assert code == 0 and found["class"] == "calibrated"
    assert plain["tpot_ms"]["value"] < found["tpot_ms"]["value"]
    assert 14.0 < found["tpot_ms"]["value"] < 30.0


def test_points_of_another_card_do_not_calibrate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = points(tmp_path / "points.csv", row(1, "tpot_ms", 14.0, gpu="H200-SXM-141GB"))
    assert "no ttft_ms or tpot_ms row of vllm on H100" in refused(
        capsys, *BASE, "--concurrency", "8", "--calibrate", file
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(1, "tpot_ms", 0.0), row(1, "ttft_ms", 70.0)], "row p1.tpot_ms: tpot_ms is 0; a measured time or rate is"),
        ([row(1, "tpot_ms", 7.0), row(1, "ttft_ms", 0.0)], "row p1.ttft_ms: ttft_ms is 0"),
        ([row(1, "tpot_ms", 40.0), row(64, "tpot_ms", 8.0, id="\x1b[2J\u202eb")], "(row \\x1b[2J\\u202eb)"),
    ],
)
def test_points_that_cannot_be_are_refused_in_one_line_without_orders_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[dict[str, Any]], message: str
) -> None:
    file = points(tmp_path / "points.csv", *rows)
    assert message in refused(capsys, *BASE, "--concurrency", "8", "--calibrate", file)


def test_a_measured_card_is_taken_from_its_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "profile.json"
    ceilings = {"hbm_read_gbps": 2000, "bf16_tflops": 500}
    file.write_text(json.dumps({"schema": "tonnage.gpu_profile/1", "name": "H100-SXM-80GB", "ceilings": ceilings}))
    slow = [*BASE, "--concurrency", "8"]
    slow[slow.index("H100")] = str(file)
    _, measured = document(capsys, *slow)
    _, printed = document(capsys, *BASE, "--concurrency", "8")
    assert measured["tpot_ms"]["value"] > printed["tpot_ms"]["value"]


def test_no_room_for_one_request_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, *BASE, "--concurrency", "8", "--pool-gib", "0.01")
    assert code == 1 and found["fits"] is False


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--concurrency", "0"], "concurrency is 0"),
        (["--concurrency", "8", "--tp", "3"], "tp 3 does not divide"),
        (["--concurrency", "8", "--engine", "nobody:1"], "nobody"),
        (["--concurrency", "8", "--prefix", "2000"], "prefix 2000 is more than isl 1000"),
        (["--concurrency", "8", "--precision", "w3"], "w3"),
        (["--concurrency", "8", "--calibrate", "/nowhere.csv"], "cannot read /nowhere.csv"),
        ([], "concurrency"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], more: list[str], message: str) -> None:
    assert message in refused(capsys, *BASE, *more)


def test_accuracy_answers_latency_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ROWS.read_text().splitlines()
    file = tmp_path / "truth.csv"
    file.write_text("\n".join([lines[0], *(line for line in lines if line.startswith("NIM70"))]) + "\n")
    rows = tmp_path / "rows.csv"
    code, found = document(capsys, "accuracy", str(file), "--calibrate", "2", "--rows", str(rows))
    assert code == 0 and found["rows"] == found["answered"] == 24
    assert found["calibration"] == {"points": 2, "curves": 1, "rows_used": 6}
    assert found["summary"]["tpot_ms"]["n"] == 6
    assert found["summary"]["tpot_ms"]["median_pct"] <= 8
    with rows.open() as written:
        assert {one["class"] for one in csv.DictReader(written)} == {"calibrated"}
