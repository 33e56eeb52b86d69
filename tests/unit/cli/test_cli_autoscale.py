"""`tonnage autoscale`: the report, the page, and what bad input says."""

import json
from pathlib import Path

import pytest

from tonnage_cli.main import run

TRACE = str(Path(__file__).resolve().parents[3] / "samples" / "azure_sample.csv")
SMALL = [TRACE, "--limit", "60", "--rate-factor", "3", "--initial", "2", "--max-replicas", "6"]


def test_policies_are_reported_side_by_side(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "out" / "runs.html"
    asked = ["--policy", "tonnage", "--policy", "kpa", "--thresholds", "30", "2", "--policy", "oracle"]
    code = run(["autoscale", *SMALL, *asked, "--plot", str(page), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "tonnage.autoscale/1"
    assert set(document["policies"]) == {"tonnage", "kpa", "oracle"}
    for one in document["policies"].values():
        assert {"slo_attainment", "gpu_hours", "oracle_ratio", "cut_streams", "direction_changes"} <= set(one)
        assert one["cut_streams"] == 0
    assert document["policies"]["oracle"]["oracle_ratio"] == 1.0
    met = all(one["slo_attainment"] >= 0.99 for one in document["policies"].values())
    assert code == (0 if met else 1)
    text = page.read_text()
    assert text.count("<svg") == 5
    assert "http" not in text, "the page needs no other file"


def test_equal_seeds_give_equal_reports(capsys: pytest.CaptureFixture[str]) -> None:
    reports = []
    for _ in range(2):
        run(["autoscale", *SMALL, "--json"])
        reports.append(capsys.readouterr().out)
    assert reports[0] == reports[1]


def test_warm_replicas_and_gpu_classes_are_priced(capsys: pytest.CaptureFixture[str]) -> None:
    priced = ["--usd-per-hour", "2.9", "--usd-per-late", "0.01", "--gpu-class", "L40S", "0.6", "8"]
    run(["autoscale", *SMALL, *priced, "--json"])
    assert json.loads(capsys.readouterr().out)["warm"] is None, "no forecast was held against what came yet"
    surge = str(Path(TRACE).with_name("azure_surge.csv"))
    run(["autoscale", surge, *priced, "--json"])
    document = json.loads(capsys.readouterr().out)
    warm, classes = document["warm"], document["classes"]
    assert [one["idle_usd_per_hour"] for one in warm["choices"]] == [2.9 * one["replicas"] for one in warm["choices"]]
    assert warm["replicas"] >= 0
    assert set(classes["replica_hours"]) == {"H100-SXM-80GB", "L40S"}
    assert classes["unplaced_load_hours"] == 0
    assert 0 < classes["usd"] <= classes["usd_first_class_only"] * 1.5
    run(["autoscale", surge, *priced])
    said = capsys.readouterr().out
    assert "Warm replicas" in said
    assert "GPU classes" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpu-class", "L40S", "0.6", "8"], "--usd-per-hour"),
        (["--usd-per-hour", "3", "--gpu-class", "abacus", "0.6", "8"], "abacus"),
        (["--usd-per-hour", "3", "--gpu-class", "H100-SXM-80GB", "0.6", "8"], "twice"),
        (["--start-s", "240", "90"], "shorter time first"),
        (["--initial", "9", "--max-replicas", "6"], "--initial"),
        (["--policy", "magic"], "magic"),
        (["--gpu", "abacus"], "abacus"),
        (["--policy", "kpa", "--thresholds", "nan", "2"], "finite"),
        (["--policy", "kpa", "--thresholds", "0", "2"], "--thresholds"),
        (["--policy", "hpa_queue", "--thresholds", "4", "-1"], "--thresholds"),
        (["--thresholds", "4", "1"], "a baseline's"),
        (["--start-s", "inf", "inf"], "--start-s"),
        (["--start-s", "1", "1e9"], "--start-s"),
        (["--slo-ttft-ms", "nan"], "--slo-ttft-ms"),
        (["--slo-tpot-ms", "inf"], "--slo-tpot-ms"),
        (["--slo-percentile", "nan"], "--slo-percentile"),
        (["--usd-per-hour", "1", "--usd-per-late", "nan"], "--usd-per-late"),
        (["--usd-per-hour", "3", "--gpu-class", "L40S", "nan", "8"], "--gpu-class"),
    ],
)
def test_bad_input_is_one_line(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["autoscale", TRACE, *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
