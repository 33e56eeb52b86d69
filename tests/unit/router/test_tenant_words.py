"""What is said of a tenants file that cannot be taken: how a key's hash is made, and never the key."""

from pathlib import Path

import pytest

from tonnage_router.adapters.tenant_file import read_tenants
from tonnage_runtime.errors import SettingsError


def refused(tmp_path: Path, text: str) -> str:
    file = tmp_path / "tenants.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_tenants(file)
    return str(caught.value).removeprefix(f"{file}: ")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("key_sha256: sk-acme", "tenants.0.key_sha256: not 64 hex digits in lower case"),
        ("key_sha256: [sk-acme]", "tenants.0.key_sha256: entry 1 is not 64 hex digits in lower case"),
        ("key_sha256: 17", "tenants.0.key_sha256: not 64 hex digits in lower case"),
        ("key: sk-acme", "tenants.0: no key is written here: replace key by key_sha256"),
    ],
)
def test_a_key_in_place_of_its_hash_is_told_how_to_make_it(row: str, words: str, tmp_path: Path) -> None:
    said = refused(tmp_path, f"tenants: [{{name: a, {row}}}]")
    assert said.startswith(words)
    assert "printf %s KEY | sha256sum" in said and "sk-acme" not in said


def test_a_hash_that_is_missing_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path, "tenants: [{name: a}]") == "tenants.0.key_sha256: Field required"


def test_a_list_alone_is_no_tenants_file(tmp_path: Path) -> None:
    assert refused(tmp_path, "[{name: a}]") == "a mapping with `tenants:` is expected"


def test_a_wrong_name_is_named_with_those_there_are(tmp_path: Path) -> None:
    assert "tenants.0.wieght: no such setting; is weight meant? known: concurrent_tokens, " in refused(
        tmp_path, "tenants: [{name: a, wieght: 2}]"
    )
