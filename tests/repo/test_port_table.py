"""The table of ports in docs/security.md: no port is missing, and what it says of each is what the settings say."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from tonnage_bench.settings import BenchSettings
from tonnage_coldstart.settings import ColdstartSettings
from tonnage_gpu_agent.settings import AgentSettings
from tonnage_operator.settings import OperatorSettings
from tonnage_planner.settings import PlannerSettings
from tonnage_router.settings import RouterSettings
from tonnage_runtime.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
PARTS: dict[str, type[Settings]] = {
    "AGENT": AgentSettings,
    "BENCH": BenchSettings,
    "COLDSTART": ColdstartSettings,
    "OPERATOR": OperatorSettings,
    "PLANNER": PlannerSettings,
    "ROUTER": RouterSettings,
}
OTHERS_PORTS = {"OPERATOR_COLDSTART_PORT", "ROUTER_KUBERNETES_PORT"}
"""Ports that a part connects to."""
ROWS = [
    [cell.strip() for cell in line.strip("| \n").split("|")]
    for line in (ROOT / "docs" / "security.md").read_text().split("## Ports")[1].split("## TLS")[0].splitlines()
    if "`TONNAGE_" in line and line.startswith("|")
]


def setting(name: str) -> tuple[type[Settings], str]:
    part, _, field = name.removeprefix("TONNAGE_").partition("_")
    assert field.lower() in PARTS[part].model_fields, name
    return PARTS[part], field.lower()


def test_every_port_that_a_part_opens_is_in_the_table_and_none_twice() -> None:
    opened = {
        f"{part}_{name.upper()}"
        for part, settings in PARTS.items()
        for name in settings.model_fields
        if name == "port" or name.endswith("_port")
    }
    listed = [row[1].strip("`").removeprefix("TONNAGE_") for row in ROWS]
    assert sorted(listed) == sorted(opened - OTHERS_PORTS)


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_what_a_row_says_is_what_the_settings_say(row: list[str]) -> None:
    settings, field = setting(row[1].strip("`"))
    default = settings.model_fields[field].default
    assert row[2] == ("off" if default is None else str(default))
    assert settings.model_fields["host"].default == "127.0.0.1"
    asked = re.findall(r"`(TONNAGE_\w+)`", row[3])
    assert asked or row[3].startswith("nothing")
    for name in asked:
        setting(name)
    found, certificate = setting(row[4].strip("`"))
    assert found is settings
    if certificate.endswith("cert_file"):
        with pytest.raises(ValidationError, match="together"):
            settings.model_validate({certificate: "a.pem"})


def test_what_the_bench_asks_for_it_insists_on_beyond_loopback() -> None:
    with pytest.raises(ValidationError, match="TONNAGE_BENCH_TOKEN"):
        BenchSettings(host="0.0.0.0")
