"""The planner's settings and endpoint lists."""

import os
from pathlib import Path

import pytest

from tonnage_planner.adapters.endpoints_static import FileEndpoints, StaticEndpoints
from tonnage_planner.main import endpoint_source, run
from tonnage_planner.settings import EndpointSettings, PlannerSettings
from tonnage_router.settings import EndpointSpec
from tonnage_runtime.errors import SettingsError
from tonnage_runtime.settings import load_settings

ENDPOINTS = (
    'endpoints:\n  - {url: "http://127.0.0.1:8101", model: llama-8b, role: both, gpu_profile: n1/0, cost: 1.0}\n'
)


def load(**environ: str) -> PlannerSettings:
    return load_settings(PlannerSettings, "planner", {f"TONNAGE_PLANNER_{k}": v for k, v in environ.items()})


def test_reads_structure_from_the_environment() -> None:
    settings = load(ENDPOINTS='[{"url": "http://a:1", "model": "m", "pool": "p"}]', POLICY='{"max_replicas": 4}')
    assert settings.endpoints[0].pool_name == "p"
    assert settings.policy_of("p").max_replicas == 4


def test_a_pools_policy_overrides_only_what_it_names() -> None:
    settings = load(POLICY='{"max_replicas": 9, "min_replicas": 2}', POOLS='{"p": {"min_replicas": 3}}')
    policy = settings.policy_of("p")
    assert (policy.min_replicas, policy.max_replicas) == (3, 9)
    assert settings.policy_of("other").min_replicas == 2


async def test_a_policy_that_contradicts_itself_ends_the_start_and_not_each_decision() -> None:
    with pytest.raises(SettingsError, match="min_replicas"):
        await run(load(PORT="0", POLICY='{"min_replicas": 5, "max_replicas": 2}'))


def test_an_empty_variable_means_the_default() -> None:
    assert load(ROUTER_URL="", ENDPOINTS_FILE="").router_url is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"SCRAPE_INTERVAL": "1"}, "TONNAGE_PLANNER_SCRAPE_INTERVAL: no such setting"),
        ({"SCRAPE_INTERVAL_S": "0"}, "scrape_interval_s"),
        ({"ENDPOINTS": '[{"url": "ftp://a", "model": "m"}]'}, r"endpoints\.0\.url"),
        ({"ENDPOINTS": '[{"url": "http://a", "model": "m", "colour": "red"}]'}, r"endpoints\.0\.colour"),
        ({"PORT": "70000"}, "port"),
    ],
)
def test_a_wrong_setting_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(**environ)


def test_a_policy_that_contradicts_itself_names_its_pool() -> None:
    with pytest.raises(SettingsError, match="pool p: scaling policy: min_replicas"):
        load(POOLS='{"p": {"min_replicas": 99}}').policy_of("p")


def test_a_list_and_a_file_together_are_refused(tmp_path: Path) -> None:
    settings = load(ENDPOINTS='[{"url": "http://a", "model": "m"}]', ENDPOINTS_FILE=str(tmp_path / "e.yaml"))
    with pytest.raises(SettingsError, match="both set"):
        endpoint_source(settings)


def test_the_endpoints_file_of_the_router_is_read_and_followed(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(ENDPOINTS)
    source = FileEndpoints(path)
    assert [one.url for one in source.endpoints()] == ["http://127.0.0.1:8101"]
    fresh = tmp_path / "next.yaml"
    fresh.write_text(ENDPOINTS + '  - {url: "http://127.0.0.1:8102", model: llama-8b}\n')
    os.replace(fresh, path)
    assert len(source.endpoints()) == 2


@pytest.mark.parametrize("text", ["- 1\n", "endpoints: 3\n", "endpoint: []\n", "endpoints: [{model: a}]\n", "{"])
def test_a_wrong_endpoints_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"endpoints\.yaml"):
        FileEndpoints(path).endpoints()


def test_a_missing_endpoints_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.yaml: cannot be read"):
        FileEndpoints(tmp_path / "none.yaml").endpoints()


def test_an_endpoint_listed_twice_is_refused() -> None:
    one = EndpointSettings(url="http://a", model="m")
    with pytest.raises(SettingsError, match="listed twice"):
        StaticEndpoints([one, one])


def test_every_key_of_the_routers_endpoints_file_is_known_here_too() -> None:
    assert set(EndpointSpec.model_fields) <= set(EndpointSettings.model_fields)


def test_an_endpoint_without_a_model_is_in_the_default_pool() -> None:
    assert EndpointSettings(url="http://a").pool_name == "default"
