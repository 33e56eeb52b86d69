"""`tonnage simulate`: the report of CONTRACTS, equal for equal seeds, one line for bad input."""

import json
from pathlib import Path

import pytest

from tonnage_cli.main import run


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Eight conversations of four turns, each turn one block longer."""
    path = tmp_path / "trace.jsonl"
    lines = []
    for turn in range(4):
        for talk in range(8):
            ids = [100 * talk + place for place in range(3 + turn)]
            at = 1000 * (turn * 8 + talk)
            lines.append({"timestamp": at, "input_length": 512 * len(ids) - 7, "output_length": 30, "hash_ids": ids})
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def _report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert run(["simulate", *arguments, "--json"]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def test_the_document_has_the_reports_fields_and_the_simulations_own(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = _report(capsys, str(trace), "--replicas", "2")
    assert document["schema"] == "tonnage.simulate/1"
    assert document["requests"] == {"sent": 32, "ok": 32, "errors": 0}
    assert document["replicas"] == 2
    assert document["output_tokens"] == 32 * 30
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "classes", "slo_attainment", "goodput_rps", "prefix"):
        assert document[name] is not None
    for name in ("gpu_hours", "preemptions", "decisions_sha256"):
        assert name in document


def test_equal_seeds_give_equal_documents(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (str(trace), "--seed", "5", "--step-jitter", "0.1")
    assert _report(capsys, *arguments) == _report(capsys, *arguments)


def test_prompts_wait_for_answers_by_the_share_and_the_limit_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A long prompt, two tokens after a short answer of twenty began."""
    trace = tmp_path / "two.jsonl"
    rows = [(0, 200, 20, [1]), (20, 40_000, 5, list(range(100, 179)))]
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    trace.write_text("\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows))

    def slowest_tpot_ms(*options: str) -> float:
        tpot = _report(capsys, str(trace), "--replicas", "1", *options)["tpot_ms"]
        assert isinstance(tpot, dict)
        return float(tpot["p99"])

    at_once = slowest_tpot_ms("--hold-share", "0")
    assert slowest_tpot_ms() < 0.5 * at_once
    assert slowest_tpot_ms("--slo-ttft-ms", "1") == slowest_tpot_ms("--policy", "least_load") == at_once
    assert slowest_tpot_ms("--slo-ttft-ms", "1", "--slo-ttft-ms-per-prompt-token", "0.05") < 0.5 * at_once


def test_static_batching_makes_requests_wait_longer_for_the_first_token(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crowd = (str(trace), "--replicas", "1", "--rate-scale", "40")
    continuous = _report(capsys, *crowd, "--batching", "continuous")["ttft_ms"]
    static = _report(capsys, *crowd, "--batching", "static")["ttft_ms"]
    assert isinstance(continuous, dict)
    assert isinstance(static, dict)
    assert static["mean"] > 1.5 * continuous["mean"]


def test_a_table_is_shown_without_json(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", str(trace), "--limit", "4"]) == 0
    assert "GPU hours" in capsys.readouterr().out


def test_a_request_that_fits_no_engine_makes_the_exit_code_1(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", str(trace), "--max-model-len", "2600", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["errors_by_kind"] == {"request_too_long": 8}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--block-size", "48"], "block_size 48 must divide the trace's blocks of 512 tokens"),
        (["--num-blocks", "10", "--max-model-len", "4096"], "decrease max_model_len to 144 or increase num_blocks"),
        (["--model", "meta-llama/Llama-3.1-70B"], "leaves no room for KV on 1 x H200-SXM-141GB"),
        (["--max-num-batched-tokens", "16", "--max-num-seqs", "64"], "must be greater than or equal to max_num_seqs"),
        (["--gpu", "H300"], "unknown GPU 'H300'"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    trace: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run(["simulate", str(trace), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("--rate-scale", "nan", "not a finite number"), ("--num-blocks", "100000000000", "num_blocks is 100000000000")],
)
def test_a_number_no_engine_can_have_is_one_line(
    trace: Path, option: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", str(trace), option, value]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_what_ifs_run_the_same_trace_again_and_compare(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["policy=round_robin", "preemption=swap,num-blocks=300,max-model-len=4096", "replicas=1", "adapters=6"]
    words = [word for each in asked for word in ("--what-if", each)]
    document = _report(capsys, str(trace), "--replicas", "2", "--rate-scale", "20", *words)
    found = document["what_if"]
    assert isinstance(found, list)
    assert [each["change"] for each in found] == [
        {"policy": "round_robin"},
        {"preemption": "swap", "num-blocks": 300, "max-model-len": 4096},
        {"replicas": 1},
        {"adapters": 6},
    ]
    turns, small, single, lora = found
    assert turns["decisions_sha256"] != document["decisions_sha256"]
    assert turns["ratio"]["hit_tokens"] <= 1
    assert small["engine"]["num_blocks"] == 300
    assert small["counters"]["evicted_blocks"] > document["counters"]["evicted_blocks"]  # type: ignore[index]
    assert single["replicas"] == 1
    assert single["ratio"]["tpot_p99"] > 1, single["ratio"]
    assert lora["counters"]["adapter_loads"] > 0
    alone = _report(capsys, str(trace), "--replicas", "2", "--rate-scale", "20", "--policy", "round_robin")
    assert alone["decisions_sha256"] == turns["decisions_sha256"]
    assert alone["ttft_ms"] == turns["ttft_ms"]


def test_a_table_of_what_ifs_is_shown(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["simulate", str(trace), "--limit", "8", "--what-if", "max-num-batched-tokens=1024,max-num-seqs=64"]) == 0
    )
    assert "What if" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["policy", "colour=red", "limit=3", "policy=nearest", "replicas=0", "slo-ttft-ms=nan"])
def test_a_what_if_that_is_no_option_is_bad_input(trace: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert run(["simulate", str(trace), "--what-if", text]) == 2
    assert capsys.readouterr().err.count("\n") == 1
