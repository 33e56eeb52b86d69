"""docs/where.md maps each feature to its place: every path is there, and every core module is on the map."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHERE = ROOT / "docs" / "where.md"
CORE = ROOT / "libs" / "core" / "tonnage_core"


def named_paths() -> set[str]:
    return set(re.findall(r"`([\w./-]+/[\w./-]*|[\w-]+\.(?:py|md|toml|txt|yaml))`", WHERE.read_text()))


def test_every_path_on_the_map_exists() -> None:
    assert [p for p in sorted(named_paths()) if not (ROOT / p).exists()] == []


def test_every_core_module_is_on_the_map() -> None:
    paths = named_paths()
    missing = []
    for entry in sorted(CORE.iterdir()):
        if entry.name.startswith("_") or entry.suffix not in ("", ".py"):
            continue
        name = str(entry.relative_to(ROOT))
        if not any(p.rstrip("/") == name or p.startswith(name + "/") for p in paths):
            missing.append(name)
    assert missing == []
