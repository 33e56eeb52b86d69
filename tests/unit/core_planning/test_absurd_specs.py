"""Values that only a fuzzer or a broken script writes are one error too, never a crash."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tonnage_cli.main import run
from tonnage_core.errors import BadInputError
from tonnage_core.hardware.profile import ProfileError, gpu_from_profile
from tonnage_core.planning.spec import Lookups, read_spec
from tonnage_runtime.catalogue import load_gpu, load_model

TOO_LARGE = 10**400
"""An integer that no float holds."""
UNPRINTABLE = 10**5000
"""An integer of more digits than Python prints."""


def _refused(change: Callable[[dict[str, Any]], Any]) -> str:
    spec: dict[str, Any] = {
        "model": "meta-llama/Llama-3.1-8B",
        "traffic": {"rate_rps": 1, "input_tokens": 100, "output_tokens": 10},
        "slo": {"ttft_ms": {"p99": 1500}},
        "offers": [{"gpu": "H100", "usd_per_hour": 2.9}],
    }
    change(spec)
    with pytest.raises(BadInputError) as caught:
        read_spec(spec, Lookups(load_model, load_gpu, Random))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("value", [TOO_LARGE, -TOO_LARGE, UNPRINTABLE], ids=["large", "negative", "unprintable"])
def test_an_integer_beyond_every_float_is_out_of_range(value: int) -> None:
    assert "traffic.rate_rps is" in _refused(lambda spec: spec["traffic"].update(rate_rps=value))
    assert "seed is" in _refused(lambda spec: spec.update(seed=value))


def test_a_percentile_is_written_in_plain_digits_and_given_once() -> None:
    assert "is no percentile" in _refused(lambda spec: spec["slo"].update(ttft_ms={"p\u00b2": 5}))
    assert "slo.ttft_ms.p99.0 is given twice" in _refused(
        lambda spec: spec["slo"].update(ttft_ms={"p99": 5, "p99.0": 6})
    )


def test_a_text_that_cannot_be_written_out_again_is_refused() -> None:
    assert "model is" in _refused(lambda spec: spec.update(model="\ud800"))


@pytest.mark.parametrize("name", ["model", "gpu"])
@pytest.mark.parametrize("reference", ["x" * 300, "9" * 5000, "x" * 300 + ".json"], ids=["name", "digits", "file"])
def test_a_reference_longer_than_a_file_name_is_unknown(
    name: str, reference: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"model": "meta-llama/Llama-3.1-8B", "gpu": "H100", "isl": "9", "osl": "9", "concurrency": "1"}
    asked[name] = reference
    assert run(["predict", *(part for key, value in asked.items() for part in (f"--{key}", value))]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    spec = {
        "model": asked["model"],
        "offers": [{"gpu": asked["gpu"], "usd_per_hour": 1}],
        "slo": {"tpot_ms": {"p99": 9}},
    }
    spec["traffic"] = {"rate_rps": 1, "input_tokens": 9, "output_tokens": 9}
    (tmp_path / "plan.yaml").write_text(json.dumps(spec))
    assert run(["plan", str(tmp_path / "plan.yaml")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("flag", ["--max-num-seqs", "--max-num-batched-tokens"])
def test_a_flag_beyond_every_float_is_one_line(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100", "--isl", "9", "--osl", "9", "--concurrency", "1"]
    assert run(["predict", *asked, flag, "9" * 400]) == 2
    error = capsys.readouterr().err
    assert "it must be a number from 1" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("metric", ["ttft_ms", "tpot_ms"])
def test_a_negative_measurement_does_not_calibrate(
    metric: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = tmp_path / "points.csv"
    points.write_text(
        "id,model,engine,gpu,isl,osl,concurrency,metric,value\n"
        f"a,meta-llama/Llama-3.1-8B,vllm,H100,1000,100,8,{metric},-3\n"
    )
    asked = ["--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100", "--isl", "9", "--osl", "9", "--concurrency", "1"]
    assert run(["predict", *asked, "--calibrate", str(points)]) == 2
    error = capsys.readouterr().err
    assert f"row a: {metric} is -3" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ceilings": [1500]}, "ceilings are"),
        ({"curves": [1]}, "curves are"),
        ({"ceilings": {"hbm_read_gbps": 1e-300}}, "hbm_read_gbps is"),
        ({"ceilings": {"hbm_read_gbps": float("nan")}}, "hbm_read_gbps is 'nan'"),
    ],
)
def test_a_profile_with_impossible_ceilings_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        gpu_from_profile({"name": "H100-SXM-80GB", "ceilings": {"bf16_tflops": 300}, **changes})


def test_a_profile_without_ceilings_keeps_the_data_sheet() -> None:
    assert gpu_from_profile({"name": "H100-SXM-80GB", "ceilings": None}).hbm_gbps == load_gpu("H100").hbm_gbps


@pytest.mark.parametrize(("isl", "said"), [("131073", True), ("131000", False)])
def test_a_request_beyond_the_models_positions_is_said_to_be_refused(
    isl: str, said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--model", "meta-llama/Llama-3.1-8B", "--gpu", "H200", "--isl", isl, "--osl", "72", "--concurrency", "1"]
    assert run(["predict", *asked, "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any("exceed the model's 131072 positions" in note for note in notes) is said


def test_answers_too_long_to_follow_are_one_error_that_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {
        "model": "meta-llama/Llama-3.1-8B",
        "traffic": {"rate_rps": 12, "input_tokens": 1000, "output_tokens": 100_000},
        "slo": {"tpot_ms": {"p95": 60}},
        "offers": [{"gpu": "H100", "usd_per_hour": 2.9}, {"gpu": "B200", "usd_per_hour": 5.5}],
    }
    (tmp_path / "plan.yaml").write_text(json.dumps(spec))
    assert run(["plan", str(tmp_path / "plan.yaml")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "plan for shorter answers" in error
