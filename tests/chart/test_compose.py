"""The compose file: images that are built here, settings that exist, ports on the loopback, nothing privileged."""

import re
from pathlib import Path
from typing import Any

import yaml

from tonnage_gpu_agent.settings import AgentSettings
from tonnage_planner.settings import PlannerSettings
from tonnage_router.settings import RouterSettings
from tonnage_runtime.settings import Settings, load_settings
from tonnage_sim.settings import SimSettings

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker" / "compose.yaml"
SERVICES: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]
OWN = {name: one for name, one in SERVICES.items() if "build" in one}
SETTINGS: dict[str, type[Settings]] = {
    "router": RouterSettings,
    "planner": PlannerSettings,
    "agent": AgentSettings,
    "sim": SimSettings,
}
TARGETS = set(re.findall(r"^FROM runtime AS (\S+)$", (ROOT / "docker" / "Dockerfile").read_text(), re.M))


def environ(name: str) -> dict[str, str]:
    """Variables of a service with defaults filled in, as compose does."""
    given = OWN[name].get("environment", {})
    return {key: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value)) for key, value in given.items()}


def test_each_image_is_a_target_of_the_dockerfile_and_the_engines_is_pinned() -> None:
    for name, one in OWN.items():
        assert one["build"]["target"] == name
        assert name in TARGETS
        assert (FILE.parent / one["build"]["context"]).resolve() == ROOT
        assert (ROOT / one["build"]["dockerfile"]).is_file()
    assert {one["image"].rpartition(":")[2] for one in SERVICES.values()} == {"0.1.0", "v0.32.0"}


def test_every_variable_is_a_setting_with_a_value_it_takes() -> None:
    for name in OWN:
        made = environ(name)
        own = {key: value for key, value in made.items() if key.startswith("TONNAGE_")}
        assert all(key.startswith(f"TONNAGE_{name.upper()}_") for key in own)
        load_settings(SETTINGS[name], name, own)


def test_router_and_planner_read_the_engine_whichever_it_is() -> None:
    (endpoint,) = load_settings(RouterSettings, "router", environ("router")).endpoints
    (other,) = load_settings(PlannerSettings, "planner", environ("planner")).endpoints
    assert endpoint.url == other.url == f"http://engine:{SimSettings().port}"
    assert endpoint.model == other.model == environ("sim")["TONNAGE_SIM_MODEL"]
    assert SERVICES["sim"]["networks"]["default"]["aliases"] == ["engine"]
    assert {tuple(SERVICES[name]["profiles"]) for name in ("engine", "sim")} == {("gpu",), ("sim",)}


def test_ports_are_those_of_the_images_and_on_the_loopback_alone() -> None:
    text = (ROOT / "docker" / "Dockerfile").read_text()
    for name, one in SERVICES.items():
        for port in one.get("ports", []):
            address, _, inside = port.split(":")
            assert address == "127.0.0.1"
            stage = text.partition(f"FROM runtime AS {name}\n")[2].partition("\nFROM ")[0]
            exposed = re.search(r"^EXPOSE (.*)$", stage, re.M)
            assert exposed is not None
            assert inside in exposed[1].split()


def test_our_containers_are_hardened() -> None:
    for one in OWN.values():
        assert one["read_only"] is True
        assert one["cap_drop"] == ["ALL"]
        assert one["security_opt"] == ["no-new-privileges:true"]
        assert not one.get("privileged")


def test_who_waits_waits_for_an_image_with_a_health_check() -> None:
    text = (ROOT / "docker" / "Dockerfile").read_text()
    for one in OWN.values():
        for name, how in one.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "HEALTHCHECK" in text.partition(f"FROM runtime AS {name}\n")[2].partition("\nFROM ")[0]
