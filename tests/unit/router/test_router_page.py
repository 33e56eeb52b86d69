"""docs/router.md names what a client or an operator may write, and its examples are taken."""

import re
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry

from tonnage_core.scheduling.pace import KNOWN, MIN_TOKENS
from tonnage_core.scheduling.pickers import PICKERS
from tonnage_core.scheduling.profile import POLICIES
from tonnage_core.scheduling.scorers import SCORERS
from tonnage_core.scheduling.types import Reason
from tonnage_router.adapters.endpoint_file import read_endpoints
from tonnage_router.adapters.tenant_file import TenantRow, read_tenants
from tonnage_router.app import build_app
from tonnage_router.body.shapes import PROMPTS
from tonnage_router.gateway import Gateway
from tonnage_router.metrics import RouterMetrics
from tonnage_router.profiles import profile_of
from tonnage_router.settings import RouterSettings

PAGE = (Path(__file__).resolve().parents[3] / "docs/router.md").read_text()
TENANTS, PROFILES, ENDPOINTS = (
    next(text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S) if word in text)
    for word in ("key_sha256", "profiles", "endpoints_file")
)


def test_the_page_names_every_path_policy_scorer_and_picker() -> None:
    named = set(re.findall(r"[\w/]+", PAGE))
    assert {path.decode() for path in PROMPTS} | {*POLICIES, *SCORERS, *PICKERS} <= named


def test_the_pages_tenants_have_every_field_and_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text(TENANTS)
    (tenant,), default = read_tenants(file)
    assert (tenant.spec.name, default) == ("a", None)
    assert set(yaml.safe_load(TENANTS)["tenants"][0]) == set(TenantRow.model_fields)


def test_the_pages_profile_is_taken() -> None:
    assert profile_of(RouterSettings.model_validate(yaml.safe_load(PROFILES))).name == "mine"


def test_the_pages_endpoints_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.yaml"
    file.write_text(ENDPOINTS)
    first, second = read_endpoints(file)
    assert first.model_fields_set == {"url"}
    assert (second.id, second.model) == ("b", "llama-8b")


def test_the_page_has_every_reason_and_no_other() -> None:
    table = PAGE[PAGE.index("### Reasons") : PAGE.index("## Tenants")]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.M)) == sorted(reason.value for reason in Reason)


def test_the_page_has_every_admin_path_with_what_it_takes() -> None:
    registry = CollectorRegistry()
    paths = build_app(Gateway(RouterSettings(), RouterMetrics(registry)), registry).openapi()["paths"]
    wanted = {f"`{method.upper()} {path}`" for path, methods in paths.items() for method in methods}
    queries = {
        f"?{parameter['name']}="
        for methods in paths.values()
        for one in methods.values()
        for parameter in one.get("parameters", [])
        if parameter["in"] == "query"
    }
    assert {words for words in wanted | queries if words not in PAGE} == set()


def test_the_page_says_when_a_request_may_be_refused() -> None:
    assert f"known after {KNOWN} streams with {MIN_TOKENS:,} prompt tokens" in PAGE
