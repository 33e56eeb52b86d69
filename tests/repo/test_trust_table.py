"""The table of promises in docs/trust.md: every row names tests that exist and the date of its last figure."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "trust.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.split("## Every promise")[1].split("\n## ")[0].splitlines()
    if line.startswith("| ") and not line.startswith(("| promise", "| **"))
]
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
TESTS = {path.name for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:60] for row in ROWS])
def test_a_promise_has_a_test_a_figure_and_its_date(row: list[str]) -> None:
    _, test, figure, date = row
    named = re.findall(r"`(?:make )?([\w.-]+)`", test)
    assert named
    assert all(name in TESTS or name in TARGETS for name in named), named
    assert figure
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \|?|20\d\d-\d\d-\d\d", date)


def test_every_result_that_the_page_names_is_there() -> None:
    named = re.findall(r"\]\(\.\./(benchmarks/results/[\w.-]+)\)", TEXT)
    assert named
    assert all((ROOT / name).is_file() for name in named)
