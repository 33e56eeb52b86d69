"""`tonnage replay` from the command line: exit codes, one clear line for bad input, the documents it writes."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tonnage_cli.main import run
from tonnage_loadgen.paced_mock import Pace, PacedMock

SAMPLES = Path(__file__).resolve().parents[3] / "samples"
MOONCAKE = str(SAMPLES / "mooncake_sample.jsonl")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A paced server in a thread of its own: the command runs its own event loop."""
    started: list[str] = []
    ready, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        server = await PacedMock(Pace(3, 0.001, 0.001)).serve()
        started.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        loops.append(asyncio.get_running_loop())
        ready.set()
        await stop.wait()
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    ready.wait()
    yield started[0]
    loops[0].call_soon_threadsafe(stop.set)
    thread.join()


def test_a_replay_prints_tables_for_people(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", MOONCAKE, "--url", url, "--limit", "20", "--speed", "1000"]) in (0, 1)
    out = capsys.readouterr().out
    assert "TTFT" in out
    assert "20 of 20" in out
    assert "unknown" in out, "the mock reports no cached tokens"


def test_json_is_one_document_that_follows_the_contract(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["replay", MOONCAKE, "--url", url + "/v1", "--limit", "10", "--speed", "1000", "--seed", "5", "--json"])
    document = orjson.loads(capsys.readouterr().out)
    assert (document["schema"], document["seed"]) == ("tonnage.replay/1", 5)
    assert document["requests"] == {"sent": 10, "ok": 10, "errors": 0}
    for key in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        assert set(document[key]) == {"p50", "p90", "p99", "mean"}
    assert set(document["classes"]) == {"short", "medium", "long"}
    assert set(document["slo"]) == {"ttft_ms", "tpot_ms", "percentile"}
    assert {"prompt_tokens", "hit_tokens", "hit_rate", "ceiling_hit_rate"} <= set(document["prefix"])
    assert {"lateness_ms_p99", "cpu_s", "bound"} <= set(document["client"])
    for key in ("version", "errors_by_kind", "slo_attainment", "goodput_rps", "output_tokens", "duration_s"):
        assert key in document


@pytest.mark.parametrize(("name", "start"), [("r.html", b"<!doctype html>"), ("r.json", b"{")])
def test_the_report_goes_to_a_file_by_its_ending(url: str, tmp_path: Path, name: str, start: bytes) -> None:
    out = tmp_path / name
    run(["replay", MOONCAKE, "--url", url, "--limit", "5", "--speed", "1000", "--out", str(out), "--json"])
    assert out.read_bytes().startswith(start)


def test_an_azure_trace_and_token_prompts_work_too(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(SAMPLES / "azure_sample.csv")
    run(["replay", trace, "--url", url, "--limit", "5", "--speed", "1000", "--prompt-format", "tokens", "--json"])
    assert orjson.loads(capsys.readouterr().out)["requests"]["ok"] == 5


def fails_with(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["replay", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("bad", ["nowhere", "http://[::1", "http://127.0.0.1:1", "ftp://h"])
def test_a_bad_url_or_a_dead_server_is_one_clear_line(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bad in fails_with([MOONCAKE, "--url", bad], capsys)


def test_a_bad_trace_is_one_clear_line(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.jsonl"
    assert "cannot be read" in fails_with([str(trace), "--url", url], capsys)
    trace.write_bytes(b"\x00\x01")
    assert "neither a Mooncake JSONL trace" in fails_with([str(trace), "--url", url], capsys)


def test_a_bad_line_is_counted_or_with_strict_fatal(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 9, "output_length": 3, "hash_ids": [1]}\n{"timestamp": 1}\n')
    run(["replay", str(trace), "--url", url, "--json"])
    document = orjson.loads(capsys.readouterr().out)
    assert document["trace"]["first_bad_lines"] == [{"line": 2, "reason": "input_length is missing"}]
    assert "line 2" in fails_with([str(trace), "--url", url, "--strict"], capsys)


def test_options_out_of_range_and_headers_that_would_split_are_bad_input(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in (["--speed", "0"], ["--limit", "0"], ["--max-input", "x"], ["--api-key", "a\r\nb: c"]):
        fails_with([MOONCAKE, "--url", url, *wrong], capsys)


@pytest.mark.parametrize("number", ["nan", "inf"])
@pytest.mark.parametrize("option", ["--speed", "--time-scale", "--slo-ttft-ms", "--slo-tpot-ms", "--timeout-s"])
def test_a_number_that_is_not_finite_is_one_line_and_exit_2(
    option: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", MOONCAKE, "--url", "http://127.0.0.1:1", option, number]) == 2
    error = capsys.readouterr().err
    assert option in error
    assert "finite" in error
    assert error.count("\n") == 1


def test_a_report_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "report.html"
    assert run(["replay", MOONCAKE, "--url", "http://127.0.0.1:1", "--out", str(out)]) == 2
    assert f"--out {out}: " in capsys.readouterr().err


def test_the_directory_of_a_report_is_made(url: str, tmp_path: Path) -> None:
    out = tmp_path / "new" / "report.json"
    run(["replay", MOONCAKE, "--url", url, "--limit", "2", "--speed", "1000", "--out", str(out), "--json"])
    assert out.exists()
