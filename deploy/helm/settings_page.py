"""Writes the reference of the router's settings: `python deploy/helm/settings_page.py docs/router_settings.md`."""

import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from tonnage_router.settings import RouterSettings
from tonnage_router.trace_settings import TraceSettings
from tonnage_runtime.setting_table import Row, rows

PREFIX = "TONNAGE_ROUTER_"
HEAD = """# Settings of the router

Written by `make chart` from the settings class; [router.md](router.md) says what they are for.

Each setting is a variable of the environment, a key of the YAML file that `TONNAGE_ROUTER_CONFIG` names, and in the
chart a key of `router.settings`; what the chart has a value of its own for is refused there, with that value's name.
The environment goes before the file. Lists and mappings are JSON in a variable:
`TONNAGE_ROUTER_SLO='{"ttft_ms": 1500}'`. A name that is no setting is an error. A default of `null` is none.
`python -m tonnage_router.main --help` prints the same.
"""
SETTINGS = """{title}
| setting | variable | type | default | meaning |
|---|---|---|---|---|
"""
SECTION = """
## {title}

| key | type | default | meaning |
|---|---|---|---|
"""


def cell(text: str) -> str:
    """Text that may stand in a table."""
    return text.replace("|", "\\|")


def default(row: Row) -> str:
    """A default as a cell; words where there is none."""
    return "required" if row.default is None else f"`{row.default}`"


def nested(settings: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Each class that settings hold, under the names of those that hold it."""
    found: dict[type[BaseModel], list[str]] = {}
    for row in rows(settings):
        if row.holds is not None:
            each = "" if row.kind == "mapping" else "each of "
            found.setdefault(row.holds, []).append(f"{each}`{row.name}`")
    for holds, names in found.items():
        title = " and ".join(names)
        yield title[0].upper() + title[1:], holds


def table(title: str, found: Iterator[Row]) -> str:
    """A table of settings below a title."""
    return SETTINGS.format(title=title) + "".join(
        f"| `{row.name}` | `{PREFIX}{row.name.upper()}` | {row.kind} | {default(row)} | {cell(row.meaning)} |\n"
        for row in found
    )


def page() -> str:
    """The whole page: what a router needs, what it sends of traces, and what lists and mappings hold."""
    traced = TraceSettings.model_fields
    text = HEAD + table("", (row for row in rows(RouterSettings) if row.name not in traced))
    text += table("\n## Traces\n", (row for row in rows(RouterSettings) if row.name in traced))
    for title, holds in nested(RouterSettings):
        text += SECTION.format(title=title)
        for row in rows(holds):
            text += f"| `{row.name}` | {row.kind} | {default(row)} | {cell(row.meaning)} |\n"
    return text


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
