"""`tonnage plan`: exit codes, the document, the page, one line for bad input."""

import json
import shlex
from html import escape
from pathlib import Path
from random import Random

import pytest

from tonnage_cli.main import run
from tonnage_core.parallelism import Layout
from tonnage_core.planning.calibrated import step_times, with_points
from tonnage_core.planning.spec import Lookups, read_spec
from tonnage_core.prediction import PredictRequest, predict
from tonnage_core.prediction.truth import Point
from tonnage_runtime.catalogue import load_gpu, load_model
from tonnage_runtime.yaml_file import read_yaml

MODEL = "meta-llama/Llama-3.1-8B"

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


def test_a_command_with_a_speculative_configuration_can_be_pasted_into_a_shell(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, drafts = tmp_path / "plan.html", "tp: [1], speculation: [{method: eagle, acceptance: 0.9}]"
    spec.write_text(SPEC.replace("tpot_ms: {p99: 50}", "tpot_ms: {p50: 5}").replace("tp: [1]", drafts))  # not without
    assert run(["plan", str(spec), "--html", str(page)]) == 0
    out = capsys.readouterr().out
    (line,) = [each.removeprefix("run: ") for each in out.splitlines() if each.startswith("run: ")]
    words = shlex.split(line)
    assert json.loads(words[words.index("--speculative-config") + 1])["method"] == "eagle"
    assert escape(line) in page.read_text()
    assert "check: eagle names no checkpoint to draft with; give search.speculation its model" in out


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


HEAD = "id,model,engine,engine_version,gpu,tp,isl,osl,concurrency,metric,value\n"


def _points(gpu: str, slower: float) -> str:
    """What a card `slower` times as slow as the model says would be measured as."""
    rows = []
    for users in (1, 8, 32):
        said = predict(PredictRequest(load_model(MODEL), load_gpu(gpu), 400, 40, users, engine="vllm", length_spread=0))
        for metric in ("ttft_ms", "tpot_ms"):
            value = slower * getattr(said, metric).value
            rows.append(f"p.c{users}.{metric},{MODEL},vllm,0.32.0,{gpu},1,400,40,{users},{metric},{value:g}\n")
    return HEAD + "".join(rows)


def test_measured_points_replace_the_models_own_step_times_and_the_plan_says_so(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = tmp_path / "points.csv"
    points.write_text(_points("H100", 1.6))
    assert run(["plan", str(spec), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert run(["plan", str(spec), "--json", "--calibrate", str(points)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert plain["calibration"] == []
    before, after = plain["best"]["step_times"], told["best"]["step_times"]
    assert (before["class"], before["points"]) == ("derived", 0)
    assert (after["class"], after["points"]) == ("calibrated", 3)
    assert after["half_width_pct"]["tpot_ms"] < before["half_width_pct"]["tpot_ms"]
    assert told["calibration"][0]["ids"][:2] == ["p.c1.tpot_ms", "p.c1.ttft_ms"]
    ratio = told["candidates"][0]["tpot_ms"] / plain["candidates"][0]["tpot_ms"]
    assert ratio == pytest.approx(1.6, rel=0.2)


def test_a_format_that_was_not_run_is_not_called_calibrated(spec: Path) -> None:
    asked = read_spec(read_yaml(spec), Lookups(load_model, load_gpu, Random))
    gpu, layout = asked.offers[0].gpu, Layout()
    request = PredictRequest(asked.shape, gpu, 400, 40, 8, precision="bf16")
    known = with_points(asked, [Point(request, tpot_ms=12.0, ids=("a",))])
    assert step_times(known, gpu, layout, 8)["class"] == "calibrated"
    narrow = step_times(known, gpu, layout, 8, "fp8")
    assert (narrow["class"], narrow["points"]) == ("derived", 1)
    assert step_times(known, gpu, layout, 8, kv_dtype="fp8")["class"] == "derived"
    assert step_times(known, gpu, Layout(tp=2), 8)["points"] == 0


def test_points_that_speak_for_no_offer_are_refused(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = tmp_path / "points.csv"
    points.write_text(_points("L40S", 1.0))
    assert run(["plan", str(spec), "--calibrate", str(points)]) == 2
    assert "has no ttft_ms or tpot_ms row of meta-llama/Llama-3.1-8B under vllm on H100" in capsys.readouterr().err


def test_a_card_that_no_catalogue_has_is_planned_by_its_own_measurements(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = {"schema": "tonnage.gpu_profile/1", "name": "Home made", "memory_bytes": 100 << 30}
    card |= {"ceilings": {"hbm_read_gbps": 2000, "bf16_tflops": 300}}
    (tmp_path / "card.json").write_text(json.dumps(card))
    spec.write_text(SPEC.replace("gpu: H100", "gpu: card.json"))
    points = tmp_path / "points.csv"
    points.write_text(_points("H100", 1.0).replace(",H100,", ",home-made,"))
    assert run(["plan", str(spec), "--calibrate", str(points)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "step times of the best: calibrated" in out
    assert "calibrated: Home made tp1 by 3 measured runs" in out
    asked = ["--model", MODEL, "--gpu", str(tmp_path / "card.json"), "--isl", "400", "--osl", "40"]
    assert run(["predict", *asked, "--concurrency", "16", "--calibrate", str(points), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["class"] == "calibrated"
