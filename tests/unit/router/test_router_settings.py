from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tonnage_core.errors import BadInputError
from tonnage_router.adapters.endpoint_file import read_endpoints
from tonnage_router.gateway import Gateway
from tonnage_router.main import settings_from
from tonnage_router.metrics import RouterMetrics
from tonnage_router.settings import EndpointSpec, RouterSettings


def gateway(**fields: object) -> Gateway:
    return Gateway(RouterSettings.model_validate(fields), RouterMetrics(CollectorRegistry()))


def test_endpoints_come_from_the_environment_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.yaml"
    file.write_text(
        'endpoints:\n  - {url: "http://127.0.0.1:8101", model: b, role: both, gpu_profile: n1/0, cost: 1.0}\n'
    )
    environ = {
        "TONNAGE_ROUTER_ENDPOINTS": '[{"url": "http://127.0.0.1:8100", "model": "a"}]',
        "TONNAGE_ROUTER_ENDPOINTS_FILE": str(file),
        "TONNAGE_ROUTER_PORT": "9000",
    }
    settings = settings_from(environ)
    assert [e.model for e in settings.endpoints] == ["a", "b"]
    assert settings.port == 9000


def test_a_profile_of_the_configuration_file_is_a_policy(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text("policy: mine\nprofiles:\n  mine: {filters: [healthy, model], scorers: {queue: 1.0}}\n")
    settings = settings_from({"TONNAGE_ROUTER_CONFIG": str(file)})
    assert gateway(**settings.model_dump()).profile.name == "mine"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"policy": "fastest"}, "policy 'fastest' is not known; known: prefix, round_robin"),
        ({"endpoints": [{"url": "http://x:1"}, {"url": "http://x:1"}]}, "x:1 is listed twice"),
    ],
)
def test_a_wrong_setting_is_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        gateway(**fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("endpoints: 3", "a list under"),
        ("endpoints: [{}]", "endpoint 1: url"),
        ('endpoints: [{url: "http://x:1", gpu_speed: 1.0e-320}]', "endpoint 1: gpu_speed"),
        ('endpoints: [{url: "http://x:70000"}]', "http://x:70000: a port is a number from 1 to 65535"),
        ('endpoints: [{url: "grpc://x:1"}]', "endpoint grpc://x:1: an http://host:port URL"),
        ('endpoints: [{url: "http://x:y"}]', "a port is a number from 1 to 65535"),
        ('endpoints: [{url: "http://x:1/v1"}]', "endpoint x:1: only http://host:port is read"),
        ('endpoints: [{url: "http://x:1/?key=1"}]', "endpoint x:1: only http://host:port is read"),
        ('endpoints: [{url: "http://me:secret@x:1"}]', "endpoint x:1: only http://host:port is read"),
        ('endpoints: [{url: "http://x:1"}, {url: "http://x:1/"}]', "endpoint x:1 is listed twice"),
        ('endpoints: [{url: "http://x..y:1"}]', "x..y can be no host's name"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_wrong_endpoint_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "e.yaml"
    file.write_text(text)
    with pytest.raises(BadInputError, match=message):
        read_endpoints(file)


def test_an_ipv6_endpoint_keeps_its_brackets_in_host() -> None:
    made = gateway(endpoints=[EndpointSpec(url="http://[::1]:8000/")])
    assert next(iter(made.fleet)).authority == b"[::1]:8000"
