"""The list of modules that `make compiled` turns into C."""

import ast
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCES = {"tonnage_core": ROOT / "libs/core", "tonnage_router": ROOT / "services/router"}
MODULES: dict[str, tuple[str, ...]] = runpy.run_path(str(ROOT / "services/router/compile.py"))["MODULES"]
PATHS = [SOURCES[folder.split("/")[0]] / folder / f"{name}.py" for folder, names in MODULES.items() for name in names]
C_WORDS = {"_thread", "_asm", "_volatile", "_inline", "_signed", "_const", "_restrict", "_typeof"}
"""Attribute names that, with the underscore mypyc puts before them, are words of gcc's C."""


def classes(path: Path) -> dict[str, set[str]]:
    """Classes of a file, and the names of their bases."""
    found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    return {node.name: {ast.unparse(base) for base in node.bases} for node in found}


COMPILED = {name for path in PATHS for name, bases in classes(path).items() if not bases & {"StrEnum", "Collector"}}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_compiled_module_can_be_named_in_c_and_needs_no_interpreted_protocol(path: Path) -> None:
    assert not C_WORDS & set(re.findall(r"self\.(\w+)", path.read_text()))
    assert all("asyncio.Protocol" not in bases for bases in classes(path).values())


def test_no_interpreted_class_inherits_from_a_compiled_one() -> None:
    others = [path for folder in ("libs", "services") for path in (ROOT / folder).rglob("*.py") if path not in PATHS]
    importing = [path for path in others if re.search(r"tonnage_(core|router)\.", path.read_text())]
    heirs = [(path.name, name) for path in importing for name, bases in classes(path).items() if bases & COMPILED]
    assert heirs == []
