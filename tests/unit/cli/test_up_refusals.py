"""`tonnage up`: what cannot work is one line and exit 2, before a process starts."""

from pathlib import Path

import pytest

from tonnage_cli.main import run


def _refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["up", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_an_engine_url_without_a_scheme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = _refused(capsys, "--engine-url", "127.0.0.1:8101", "--state-dir", str(tmp_path))
    assert "'127.0.0.1:8101' is not an http or https URL" in error


@pytest.mark.parametrize("option", ["--state-dir", "--urls-file"])
def test_a_place_that_cannot_be_written(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    given = {"--state-dir": str(tmp_path / "state")} | {option: str(tmp_path / "file" / "x")}
    error = _refused(capsys, *(word for pair in given.items() for word in pair))
    assert f"{option} {tmp_path}" in error
    assert "cannot be made" in error


@pytest.mark.parametrize("option", ["--speed", "--slo-ttft-ms", "--slo-tpot-ms"])
def test_a_number_that_is_none(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nan is not a finite number" in _refused(capsys, option, "nan")


@pytest.mark.parametrize("option", ["--start-s", "--scale-down-after-s"])
def test_what_only_a_scaled_fleet_heeds(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = _refused(capsys, option, "60")
    assert option in error and "--max-engines" in error


def test_a_start_that_takes_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    error = _refused(capsys, "--max-engines", "3", "--start-s", "0")
    assert "--start-s" in error and "0<x<=3600" in error
