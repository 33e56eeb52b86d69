"""What is said of a wrong setting: where it was written, and how it is put right."""

from pathlib import Path

import pytest
from pydantic import Field

from tonnage_runtime.errors import SettingsError
from tonnage_runtime.settings import Settings, load_settings


class Engine(Settings):
    url: str
    weight: float = 1.0


class Limits(Settings):
    ttft_ms: float = 1.0


class Fleet(Settings):
    engines: list[Engine] = Field(default_factory=list)
    names: list[str] = Field(default_factory=list)
    limits: Limits | None = None
    by_model: dict[str, Limits] = Field(default_factory=dict)


def refused(tmp_path: Path, text: str = "", **environ: str) -> str:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(Fleet, "fleet", {f"TONNAGE_FLEET_{name}": value for name, value in environ.items()}, file)
    return str(caught.value).replace(str(file), "FILE")


def test_an_unknown_name_is_answered_alike_in_a_file_and_in_the_environment(tmp_path: Path) -> None:
    known = "no such setting; is engines meant? known: by_model, engines, limits, names"
    assert refused(tmp_path, "engine: []") == f"FILE: engine: {known}"
    assert refused(tmp_path, ENGINE="[]") == f"TONNAGE_FLEET_ENGINE: {known}"


def test_an_unknown_name_further_in_is_named_before_what_it_leaves_missing(tmp_path: Path) -> None:
    known = "engines.0.uri: no such setting; is url meant? known: url, weight"
    assert refused(tmp_path, ENGINES='[{"uri": "x"}]') == f"TONNAGE_FLEET_ENGINES: {known}"
    assert "limits.itl: no such setting; known: ttft_ms" in refused(tmp_path, "limits: {itl: 3}")
    assert "by_model.m.itl: no such setting; known: ttft_ms" in refused(tmp_path, "by_model: {m: {itl: 3}}")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ENGINES", 'engines: a list is expected, such as [{"url": ...}]'),
        ("NAMES", 'names: a list is expected, such as ["..."]'),
        ("LIMITS", 'limits: a mapping is expected, such as {"ttft_ms": ...}'),
        ("BY_MODEL", 'by_model: a mapping is expected, such as {"...": {"ttft_ms": ...}}'),
    ],
)
def test_what_has_a_structure_is_shown_one(name: str, expected: str, tmp_path: Path) -> None:
    assert refused(tmp_path, **{name: "http://127.0.0.1:8000"}) == f"TONNAGE_FLEET_{name}: {expected}"


def test_a_fault_begins_with_where_the_value_was_written(tmp_path: Path) -> None:
    assert refused(tmp_path, "names: 3", LIMITS='{"ttft_ms": 2}').startswith("FILE: names: ")
    assert refused(tmp_path, "names: 3", NAMES="x").startswith("TONNAGE_FLEET_NAMES: names: ")
