"""What a command prints: a table for people, one JSON document with `--json`."""

import os
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

from tonnage_core.errors import BadInputError

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
"""Shared by every command."""


def print_json(document: Any) -> None:
    """One indented JSON document on stdout; NaN and infinity become null."""
    sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode() + "\n")


def check_writable(file: Path, option: str) -> None:
    """Make the directory of `file`, so that a long run does not end without it; `BadInputError` says why it cannot."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(f"{option} {file}: {file.parent} cannot be made: {error.strerror}") from error
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise BadInputError(f"{option} {file}: not writable by this user")


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, whole: Collection[str] = ()
) -> None:
    """A titled table; None shows as a dash, since unknown is not zero. Columns in `whole` are not cut or wrapped where
    the terminal is narrow."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=column in whole)
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))
    Console().print(table)
