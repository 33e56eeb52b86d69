import pytest

from tonnage_coldstart import main


@pytest.mark.parametrize(
    ("name", "value"), [("PORT", "x"), ("CACHE_DIRS", "/a"), ("CACHE_DIR", ""), ("CONNECTIONS", "0")]
)
def test_bad_settings_are_one_line_and_exit_code_2(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"TONNAGE_COLDSTART_{name}", value)
    monkeypatch.setattr("sys.argv", ["tonnage-coldstart"])
    assert main.main() == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert name.lower() in lines[0].lower()
