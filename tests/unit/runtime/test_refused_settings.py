"""Every service refuses the same wrong settings before it starts, naming the field."""

import pytest

from tonnage_coldstart.settings import ColdstartSettings
from tonnage_gpu_agent.settings import AgentSettings
from tonnage_planner.settings import PlannerSettings
from tonnage_router.settings import RouterSettings
from tonnage_runtime.errors import SettingsError
from tonnage_runtime.settings import Settings, load_settings
from tonnage_sim.settings import SimSettings

SERVICES: dict[str, type[Settings]] = {
    "router": RouterSettings,
    "planner": PlannerSettings,
    "agent": AgentSettings,
    "coldstart": ColdstartSettings,
    "sim": SimSettings,
}
NUMBERS = [(service, name) for service, cls in SERVICES.items() for name, f in cls.model_fields.items()
           if f.annotation is float]  # fmt: skip


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(("field", "value"), [("port", "-1"), ("port", "70000"), ("log_level", "LOUD")])
def test_ports_and_log_levels_are_checked(service: str, field: str, value: str) -> None:
    with pytest.raises(SettingsError, match=rf"\b{field}: "):
        load_settings(SERVICES[service], service, {f"TONNAGE_{service.upper()}_{field.upper()}": value})


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
@pytest.mark.parametrize(("service", "field"), NUMBERS)
def test_no_time_or_rate_is_endless_negative_or_no_number(service: str, field: str, value: str) -> None:
    with pytest.raises(SettingsError, match=rf"\b{field}: "):
        load_settings(SERVICES[service], service, {f"TONNAGE_{service.upper()}_{field.upper()}": value})


def test_services_that_run_beside_each_other_have_ports_of_their_own_and_stay_on_loopback() -> None:
    beside = [cls for service, cls in SERVICES.items() if service != "sim"]
    ports = [cls.model_fields["port"].default for cls in beside]
    assert len(set(ports)) == len(ports)
    assert {cls.model_fields["host"].default for cls in beside} == {"127.0.0.1"}


def test_an_empty_text_is_empty_and_not_missing() -> None:
    assert load_settings(AgentSettings, "agent", {"TONNAGE_AGENT_NODE": ""}).node == ""
