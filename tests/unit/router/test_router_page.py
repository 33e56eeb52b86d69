"""docs/router.md names what a client or an operator may write, and its examples are taken."""

import re
from pathlib import Path

import yaml

from tonnage_core.scheduling.pickers import PICKERS
from tonnage_core.scheduling.profile import POLICIES
from tonnage_core.scheduling.scorers import SCORERS
from tonnage_router.adapters.tenant_file import TenantRow, read_tenants
from tonnage_router.body.shapes import PROMPTS
from tonnage_router.profiles import profile_of
from tonnage_router.settings import RouterSettings

PAGE = (Path(__file__).resolve().parents[3] / "docs/router.md").read_text()
TENANTS, PROFILES = (
    next(text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S) if word in text)
    for word in ("key_sha256", "profiles")
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
