"""`tonnage stage` and `tonnage load`: what cannot be meant is one line and exit 2."""

from pathlib import Path

import pytest

from tonnage_cli.main import run


@pytest.mark.parametrize(
    "given",
    [
        ("stage", "--timeout-s", "1e300"),
        ("stage", "--quota-gib", "1e300"),
        ("load", "--device", "cpu:x"),
        ("load", "--device", "tpu"),
        ("load", "--device", "cpu:99"),
        ("load", "--cache", ""),
        ("stage", "--cache", ""),
        ("stage", "--cache", "a" * 300),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(
    given: tuple[str, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, option, value = given
    cache = ["--cache", str(tmp_path / "cache")] if command == "stage" else []  # a later one counts
    assert run([command, str(tmp_path), *cache, option, value]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert option.removeprefix("--") in told[0]


def test_a_file_without_authorities_is_refused_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ca.crt").write_text("no certificate")
    given = ["--cache", str(tmp_path / "cache"), "--ca-file", str(tmp_path / "ca.crt")]
    assert run(["stage", "https://127.0.0.1:9/model", *given]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert "ca.crt" in told and "give PEM certificates" in told
