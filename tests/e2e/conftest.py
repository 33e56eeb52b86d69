"""What the tests before real engines found: a table at the end, files in the folder that TONNAGE_E2E_REPORTS names."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TABLE = pytest.StashKey[list[dict[str, str]]]()
Told = Callable[[str, str], None]
Saved = Callable[[str, Any], None]
FOLDER = os.environ.get("TONNAGE_E2E_REPORTS")


@pytest.fixture
def told(request: pytest.FixtureRequest) -> Told:
    """Puts a row into the table: what was tried, and the figures that came of it."""
    rows = request.config.stash.setdefault(TABLE, [])
    return lambda what, figures: rows.append({"what": what, "figures": figures, "test": request.node.nodeid})


@pytest.fixture
def saved() -> Saved:
    """Keeps a part of a report: `name` is `FILE/PART`; nothing without a folder."""

    def keep(name: str, figures: Any) -> None:
        if not FOLDER:
            return
        file, _, part = name.partition("/")
        path = Path(FOLDER) / f"{file}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        document = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**document, part: figures}, indent=1) + "\n")

    return keep


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table: a test that failed after its figures were known is marked so."""
    rows = config.stash.get(TABLE, [])
    if not rows:
        return
    failed = {report.nodeid for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, [])}
    for row in rows:
        row["outcome"] = "FAILED" if row.pop("test") in failed else "ok"
    width = max(len(row["what"]) for row in rows)
    terminalreporter.section("before real engines")
    for row in rows:
        terminalreporter.line(f"{row['what']:{width}}  {row['outcome']:6}  {row['figures']}")
    if FOLDER:
        (Path(FOLDER) / "table.json").write_text(json.dumps(rows, indent=1) + "\n")
