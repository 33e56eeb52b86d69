"""Every service's command line: help is help, and what it does not take is one line and exit code 2."""

import re
import sys
from collections.abc import Callable

import pytest

import tonnage_coldstart.main
import tonnage_gpu_agent.main
import tonnage_operator.main
import tonnage_planner.main
import tonnage_router.main
import tonnage_sim.main
from tonnage_router.settings import RouterSettings
from tonnage_runtime.arguments import settings_file

MAINS: dict[str, Callable[[], int]] = {
    "coldstart": tonnage_coldstart.main.main,
    "gpu_agent": tonnage_gpu_agent.main.main,
    "operator": tonnage_operator.main.main,
    "planner": tonnage_planner.main.main,
    "router": tonnage_router.main.main,
    "sim": lambda: tonnage_sim.main.main(sys.argv[1:]),
}


@pytest.mark.parametrize("service", MAINS)
@pytest.mark.parametrize("words", [["--bogus"], ["--p", "8080"], ["a.yaml", "b.yaml"]], ids=" ".join)
def test_what_a_service_does_not_take_is_named_in_one_line(
    service: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["main", *words])
    assert MAINS[service]() == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert any(word in lines[0] for word in words) and "--help" in lines[0]


@pytest.mark.parametrize("service", MAINS)
def test_help_is_printed_and_nothing_starts(
    service: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["main", "--help"])
    with pytest.raises(SystemExit) as ended:
        MAINS[service]()
    assert ended.value.code == 0
    assert f"python -m tonnage_{service}.main" in capsys.readouterr().out


def test_the_routers_help_lists_every_setting_with_its_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["main", "--help"])
    with pytest.raises(SystemExit):
        tonnage_router.main.main()
    said = capsys.readouterr().out
    listed = re.findall(r"^  TONNAGE_ROUTER_(\w+)  \(", said, re.M)
    assert {name.lower() for name in listed} == RouterSettings.model_fields.keys()
    assert "  TONNAGE_ROUTER_ADMIN_PORT  (integer, 0 to 65,535; 8001)\n      Admin port: " in said


def test_a_settings_file_is_optional() -> None:
    assert settings_file("p", None, []) is None
    assert str(settings_file("p", None, ["a.yaml"])) == "a.yaml"
