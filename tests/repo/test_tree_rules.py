"""Rules of the tree that no linter has."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE_FOLDERS = ("libs", "services", "gpu-agents", "operators")
VAGUE_NAMES = {"utils.py", "util.py", "helpers.py", "helper.py", "common.py", "misc.py", "manager.py"}


def tracked(suffix: str = "") -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [ROOT / name for name in listed if name.endswith(suffix) and (ROOT / name).is_file()]


def test_no_python_file_is_over_400_lines() -> None:
    long = {str(p.relative_to(ROOT)): n for p in tracked(".py") if (n := len(p.read_text().splitlines())) > 400}
    assert long == {}


def test_no_function_is_over_60_lines() -> None:
    long = {}
    for path in tracked(".py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > 60:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = lines
    assert long == {}


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert [p for p in tracked(".py") if p.name in VAGUE_NAMES] == []


def test_test_files_have_unique_names() -> None:
    names = [p.name for p in tracked(".py") if p.name.startswith("test_")]
    assert sorted({n for n in names if names.count(n) > 1}) == []


def test_no_module_is_shadowed_by_a_package() -> None:
    assert [p for p in tracked(".py") if (p.parent / p.stem).is_dir() and p.parent.parts[-1] != "tests"] == []


@pytest.mark.parametrize("folder", SOURCE_FOLDERS)
def test_the_environment_is_read_in_main_only(folder: str) -> None:
    readers = []
    for path in (ROOT / folder).rglob("*.py"):
        if path.name == "main.py" or "tonnage_cli" in path.parts:
            continue
        text = path.read_text()
        if "os.environ" in text or "os.getenv" in text:
            readers.append(str(path.relative_to(ROOT)))
    assert readers == []


def test_nothing_is_unpickled() -> None:
    users = [p for p in tracked(".py") if "import pickle" in p.read_text() and p != Path(__file__)]
    assert users == []


def test_no_machine_path_or_package_index_is_committed() -> None:
    needles = ("/work" + "/", "index" + "-url", "files.python" + "hosted")
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {needle}" for needle in needles if needle in text]
    assert found == []
