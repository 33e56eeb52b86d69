"""`tonnage memory` and `tonnage accuracy`: documents, exit codes, one line for bad input."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tonnage_cli.main import run

BASE = ["memory", "--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100", "--engine", "vllm:0.19.0"]
FIELDS = (
    "schema version weight_gib activation_peak_gib non_torch_gib cuda_graph_gib non_kv_total_gib kv_cache_gib "
    "kv_bytes_per_token kv_cache_blocks kv_cache_tokens max_concurrency_x fits binding max_fitting_model_len steps"
)


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run([*arguments, "--json"])
    loaded: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, loaded


def test_the_document_has_every_field_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, *BASE)
    assert code == 0 and found["fits"] is True
    assert set(FIELDS.split()) <= set(found)
    assert all(set(step) == {"name", "formula", "value", "unit"} for step in found["steps"])


def test_each_step_can_be_redone_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = document(capsys, *BASE, "--max-model-len", "8192")
    steps = {step["name"]: step for step in found["steps"]}
    assert steps["kv_pool"]["formula"] == f"0.9 x 79.19 - non-KV {found['non_kv_total_gib']:.3f}"
    assert steps["kv_pool"]["value"] == pytest.approx(0.9 * 79.19 - found["non_kv_total_gib"], abs=1e-3)
    assert steps["blocks"]["value"] == int(found["kv_cache_gib"] * 2**30 // 2_097_152)
    assert steps["concurrency"]["formula"] == f"{found['kv_cache_blocks']:,} / 512"


def test_a_given_pool_needs_no_card(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(
        capsys, "memory", "--model", "meta-llama/Llama-3.1-8B", "--pool-gib", "2", "--max-model-len", "8192"
    )
    assert (code, found["gpu"], found["kv_cache_blocks"], found["kv_cache_tokens"]) == (0, None, 1024, 16384)


def test_without_card_and_pool_the_answer_is_unknown_not_zero(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, "memory", "--model", "meta-llama/Llama-3.1-8B")
    assert (code, found["fits"], found["kv_cache_gib"], found["kv_cache_blocks"]) == (0, None, None, None)


def test_a_model_that_does_not_fit_exits_with_1_and_names_what_binds(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, "memory", "--model", "meta-llama/Llama-3.1-70B", "--gpu", "H100")
    assert (code, found["fits"], found["binding"]) == (1, False, "weights")
    code, found = document(capsys, *BASE, "--gpu-memory-utilization", "0.25", "--max-model-len", "131072")
    assert (code, found["fits"], found["binding"]) == (1, False, "kv_cache")
    assert 0 < found["max_fitting_model_len"] < 131_072


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tp", "3"], "tp 3 does not divide"),
        (["--tp", "-1"], "tp is -1"),
        (["--tp", "2", "--ep", "2"], "has no experts"),
        (["--ep", "2"], "does not divide tp x dp"),
        (["--pp", "40"], "pp 40"),
        (["--gpu", "H900"], "unknown GPU 'H900'"),
        (["--max-model-len", "1000000000000"], "max_model_len"),
        (["--max-model-len", "131073"], "131,072"),
        (["--max-model-len", "1e12"], "not a valid integer"),
        (["--max-num-seqs", "-5"], "max_num_seqs is -5"),
        (["--block-size", "0"], "block_size is 0"),
        (["--pool-gib", "nan"], "pool_gib is nan"),
        (["--gpu-memory-utilization", "nan"], "gpu_memory_utilization is nan"),
        (["--gpu-memory-utilization", "1.5"], "at most 1"),
        (["--gpu-memory-gib", "inf"], "gpu_memory_gib is inf"),
        (["--kv-dtype", "int3"], "unknown KV cache type"),
        (["--dtype", "int3"], "unknown dtype"),
        (["--engine", "tgi:1.0.0"], "unknown engine"),
        (["--engine", "vllm:latest"], "engine version"),
        (["--mtp-layers", "1"], "--speculative-tokens"),
        (["--lora-slots", "0"], "adapter slots is 0"),
        (["--model", "no/such-model"], "no model"),
        (["--out", "/no/such/folder/report.html"], "cannot write"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*BASE, *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not JSON"),
        (b"[1]", "no JSON object"),
        (b"{}", "num_hidden_layers"),
        (b" " * (9 << 20), "larger than 8 MiB"),
    ],
)
def test_a_broken_config_file_is_one_line(
    content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    assert run(["memory", "--model", str(file), "--gpu", "H100"]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count("\n") == 1


def test_extras_take_memory_from_the_pool(capsys: pytest.CaptureFixture[str]) -> None:
    _, plain = document(capsys, *BASE)
    extras = ["--lora-slots", "4", "--draft-model", "Qwen/Qwen3-0.6B", "--speculative-tokens", "3"]
    _, found = document(capsys, *BASE, *extras)
    steps = {step["name"]: step["value"] for step in found["steps"]}
    assert steps["adapter_slots"] == pytest.approx(4 * 16 * 81_920 * 32 * 2 / 2**30, abs=1e-4)
    lost = plain["kv_cache_gib"] - found["kv_cache_gib"]
    assert lost == pytest.approx(steps["adapter_slots"] + steps["draft_model"], abs=1e-3)


def test_the_report_is_one_self_contained_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    assert run([*BASE, "--pp", "2", "--out", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == 1 and "stage 1" in text and "http" not in text
    assert "KV pool" in capsys.readouterr().out


def truth(path: Path, *rows: dict[str, str]) -> Path:
    fields = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(rows)
    return path


ROW = {
    "id": "A",
    "config": "meta-llama--Meta-Llama-3.1-8B",
    "engine": "vllm",
    "engine_version": "0.19.0",
    "gpu": "H100",
    "tp": "1",
}


def test_accuracy_scores_rows_and_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {**ROW, "metric": "weight_gib", "value": "14.99"},
        {**ROW, "id": "B", "metric": "e2e_ms", "value": "50"},
        {**ROW, "id": "C", "metric": "start_result", "value": "start"},
    ]
    out = tmp_path / "rows.csv"
    code, found = document(capsys, "accuracy", str(truth(tmp_path / "t.csv", *rows)), "--rows", str(out))
    assert (code, found["rows"], found["answered"], found["false_fits"], found["false_refusals"]) == (0, 3, 2, 0, 0)
    assert found["summary"]["weight_gib"]["mae_pct"] < 0.1
    assert found["not_answered"] == {"metric e2e_ms is not answered": 1}
    lines = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [line["id"] for line in lines] == ["A", "B", "C"]
    assert float(lines[0]["lo90"]) <= 14.99 <= float(lines[0]["hi90"])


def test_accuracy_counts_rows_the_planner_refuses_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {**ROW, "metric": "weight_gib", "value": "14.99"}
    odd = [{**row, "engine_version": "main"}, {**row, "tp": "3"}, {**row, "config": "no--model"}, row]
    code, found = document(capsys, "accuracy", str(truth(tmp_path / "t.csv", *odd)))
    assert (code, found["rows"], found["answered"]) == (0, 4, 1)
    assert sum(found["not_answered"].values()) == 3


def test_accuracy_exits_with_1_on_a_false_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {**ROW, "metric": "start_result", "value": "fail"}
    code, found = document(capsys, "accuracy", str(truth(tmp_path / "t.csv", row)))
    assert (code, found["false_fit_ids"]) == (1, ["A"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"value": "nan"}, "finite"),
        ({"value": ""}, "value is missing"),
        ({"tp": "two"}, "tp is 'two'"),
        ({"config": "../secret"}, "plain file name"),
        ({"max_model_len": "1e999"}, "max_model_len"),
    ],
)
def test_accuracy_names_the_bad_row(
    changes: dict[str, str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {**ROW, "metric": "weight_gib", "value": "14.99", "max_model_len": "", **changes}
    assert run(["accuracy", str(truth(tmp_path / "t.csv", row))]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count("\n") == 1


def test_a_profile_that_is_no_object_and_an_impossible_adapter_rank_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "gpu.json"
    profile.write_text("[]")
    for arguments, words in (
        ([*BASE[:3], "--gpu", str(profile)], "give a GpuProfile"),
        ([*BASE, "--lora-rank", "0"], "0"),
    ):
        assert run(arguments) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and words in error
