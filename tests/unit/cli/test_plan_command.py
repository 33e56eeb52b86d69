"""`tonnage plan`: exit codes, the document, the page, one line for bad input."""

import json
from pathlib import Path

import pytest

from tonnage_cli.main import run

SPEC = """
model: meta-llama/Llama-3.1-8B
engine: vllm:0.32.0
traffic: {rate_rps: 4, input_tokens: 400, output_tokens: 40}
slo: {ttft_ms: {p99: 1000}, tpot_ms: {p99: 50}}
offers: [{gpu: H100, usd_per_hour: 2.9, max: 4}]
search: {precision: [auto], kv_dtype: [auto], tp: [1]}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text(SPEC)
    return path


def test_a_plan_prints_one_document_and_writes_its_page(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "plan.html"
    assert run(["plan", str(spec), "--json", "--html", str(page), "--progress"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["schema"] == "tonnage.plan/1"
    assert document["best"]["command"][:3] == ["vllm", "serve", "meta-llama/Llama-3.1-8B"]
    assert page.read_text().startswith("<!doctype html>")
    assert "100%  done" in err


def test_tables_are_shown_without_json(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(spec)]) == 0
    out = capsys.readouterr().out
    assert "One replica" in out
    assert "run: vllm serve" in out
    assert "check: passes" in out


def test_a_plan_that_cannot_be_met_exits_with_1_and_says_what_binds(
    spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec.write_text(SPEC.replace("p99: 1000", "p99: 5"))
    assert run(["plan", str(spec)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "not feasible (ttft_ms.p99)" in out
    assert "way out: slo.ttft_ms.p99" in out


def test_a_trace_is_found_beside_the_specification(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        json.dumps({"timestamp": 500 * n, "input_length": 512, "output_length": 20, "hash_ids": [n // 8]})
        for n in range(60)
    ]
    (spec.parent / "t.jsonl").write_text("\n".join(lines))
    spec.write_text(
        SPEC.replace("{rate_rps: 4, input_tokens: 400, output_tokens: 40}", "{trace: t.jsonl, rate_scale: 2}")
    )
    assert run(["plan", str(spec), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["spec"]["rate_rps"] == pytest.approx(60 / 29.5 * 2, rel=1e-3)
    assert document["candidates"][0]["hit_rate"] > 0.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: [", "is not YAML"),
        ("a: &x [1]\nb: *x\n", "uses YAML aliases"),
        ("", "the plan spec is None; a mapping"),
        (SPEC.replace("rate_rps: 4", "rate_rps: -4"), "traffic.rate_rps is -4"),
        (SPEC.replace("{rate_rps: 4, input_tokens: 400, output_tokens: 40}", "{trace: none.jsonl}"), "cannot be read"),
        ("\x00", "is not YAML"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    spec: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    spec.write_text(text)
    assert run(["plan", str(spec)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_file_that_is_not_there_or_cannot_be_written_is_bad_input(
    spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(spec.parent / "none.yaml")]) == 2
    assert "cannot read" in capsys.readouterr().err
    assert run(["plan", str(spec), "--html", str(spec / "page.html"), "--json"]) == 2
    assert "cannot write" in capsys.readouterr().err
