"""The command: a report with a verdict, bench points that calibrate, one line for what is no load."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tonnage_cli.main import run
from tonnage_core.errors import BadInputError
from tonnage_loadgen.accuracy_tasks import read_tasks
from tonnage_loadgen.engine_watch import read_flags, read_metrics
from tonnage_loadgen.paced_mock import Pace, PacedMock


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(PacedMock(Pace(3, 0.01, 0.005)).serve())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    loop.call_soon_threadsafe(server.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_closed_loop_writes_a_report_and_points_that_predict_takes(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points, out = tmp_path / "points.csv", tmp_path / "report.json"
    what = ["--gpu", "H200", "--engine", "vllm:0.32.0", "--catalogue-model", "meta-llama/Llama-3.1-8B"]
    load = ["--sweep-users", "1,2", "--requests", "12", "--output-tokens", "constant:3", "--warmup-s", "0"]
    files = ["--points", str(points), "--out", str(out)]
    assert run(["bench", "--url", url, *load, *what, *files, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(out.read_text())
    assert [each["users"] for each in document["runs"]] == [1, 2]
    assert document["settings"]["endpoint"]["api"] == "completions"
    assert document["prompts_sha256"]
    asked = ["--gpu", "H200", "--isl", "512", "--osl", "3", "--concurrency", "2", "--calibrate", str(points)]
    assert run(["predict", "--model", "meta-llama/Llama-3.1-8B", *asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["class"] in ("measured", "calibrated")


def test_a_rate_that_never_meets_the_slo_exits_with_one(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--url", url, "--rate", "0.02", "--capacity", "--duration-s", "0.001"]) == 2
    assert "holds no request" in capsys.readouterr().err
    slo = ["--slo-ttft-ms", "0.001", "--most-runs", "1", "--duration-s", "0.5"]
    assert run(["bench", "--url", url, "--rate", "30", "--capacity", *slo]) == 1
    assert "capacity: none" in capsys.readouterr().out


def test_a_load_that_would_last_for_years_is_refused(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"timestamp": at, "input_length": 5, "output_length": 3, "hash_ids": [at]} for at in (0, 4000)]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run(["bench", "--url", url, "--trace", str(trace), "--rate-scale", "1e-9"]) == 2
    assert "the load takes 4e+09 s, and a run lasts at most 604800 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give one load"),
        (["--rate", "1", "--users", "2"], "give one load"),
        (["--rate", "1", "--input-tokens", "many"], "lognormal:P50,P99"),
        (["--rate", "1", "--class", "chat=1/constant:5"], "--class"),
        (["--rate", "1", "--tenant", "a=x"], "--tenant"),
        (["--rate", "1", "--points", "p.csv"], "closed loop"),
        (["--users", "1", "--turns", "2", "--turn-think-s", "1", "--points", "p.csv"], "--turn-think-s"),
        (["--capacity"], "--rate"),
        (["--rate", "1", "--journal", "j.jsonl"], "--journal"),
        (["--sweep", "1,b"], "numbers with commas"),
        (["--sweep-users", "1.5"], "whole numbers"),
        (["--rate", "1", "--tasks", "t.jsonl"], "--baseline-url"),
        (["--rate", "nan"], "not a finite number"),
        (["--rate", "1e-200", "--duration-s", "1e300"], "at most 604800 s"),
        (["--rate", "1000", "--duration-s", "3600", "--turns", "1000"], "too many"),
        (["--rate", "0.5", "--turns", "1000", "--input-tokens", "constant:16777216"], "shorter prompts"),
        (["--users", "1", "--requests", "5000000", "--input-tokens", "lognormal:100000,300000"], "shorter prompts"),
    ],
)
def test_what_is_no_load_ends_in_one_line(
    url: str, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "--url", url, *arguments]) == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert shown.count("\n") == 1


def test_tasks_say_which_line_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    assert read_tasks(file)[0].pattern.search("it is 2.")
    assert not read_tasks(file)[0].pattern.search("it is 12")
    for line, says in (
        ("nonsense", "not JSON"),
        ('{"prompt": "x"}', "are needed"),
        ('{"prompt": "x", "answer": "(", "regex": true}', "regular expression"),
        ('{"prompt": "x", "answer": "y", "max_tokens": 0}', "max_tokens"),
    ):
        file.write_text('{"prompt": "1+1=", "answer": "2"}\n' + line + "\n")
        with pytest.raises(BadInputError, match=f"line 2.*{says}"):
            read_tasks(file)
    file.write_text("\n")
    with pytest.raises(BadInputError, match="no task"):
        read_tasks(file)


def test_metrics_of_engines_and_agents_are_read_and_the_rest_is_left() -> None:
    text = (
        "# HELP vllm:num_requests_running x\n"
        'vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_running{engine="1"} 3\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.5\n'
        'tonnage_gpu_clock_hertz{gpu="0",domain="memory"} 9e9\ntonnage_gpu_clock_hertz{gpu="0",domain="sm"} 1.98e9\n'
        "other_total 4\nvllm:num_preemptions_total oops\n"
    )
    assert read_metrics(text) == {"running": 5.0, "kv_usage": 0.5, "sm_clock_hz": 1.98e9}


def test_the_engine_s_flags_are_read_from_its_metrics() -> None:
    line = (
        'vllm:cache_config_info{block_size="32",engine="0",swa="None",layers="a\\"b",enable_prefix_caching="True"} 1.0'
    )
    assert read_flags(f"# TYPE x gauge\n{line}\n") == {
        "block_size": "32",
        "layers": 'a\\"b',
        "enable_prefix_caching": "True",
    }
    assert read_flags("vllm:num_requests_running 1\n") == {}
