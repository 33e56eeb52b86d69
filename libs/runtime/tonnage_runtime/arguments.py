"""The command line of a service: settings come from the environment and a YAML file, so it takes little else."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tonnage_core.errors import BadInputError


class ArgumentsError(BadInputError):
    """The command line holds what the program does not take."""

    def __init__(self, prog: str, problem: str) -> None:
        super().__init__(f"{problem}; `{prog} --help` says what it takes")


class OneLineParser(argparse.ArgumentParser):
    """argparse whose refusals are raised as `ArgumentsError`, in one line; options are never guessed from a prefix."""

    def __init__(self, prog: str, description: str | None) -> None:
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(prog=prog, description=description, formatter_class=raw, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise `ArgumentsError` in place of the usage text."""
        raise ArgumentsError(self.prog, message)


def settings_file(prog: str, description: str | None, arguments: Sequence[str]) -> Path | None:
    """The one word such a service takes: a YAML file of settings, None when absent.

    `--help` prints and exits 0; anything else raises `ArgumentsError`.
    """
    parser = OneLineParser(prog, description)
    add_settings_file(parser)
    found: Path | None = parser.parse_args(arguments).settings
    return found


def add_settings_file(parser: argparse.ArgumentParser) -> None:
    """Let `parser` take the file of settings, as `settings`."""
    parser.add_argument("settings", nargs="?", type=Path, metavar="SETTINGS.yaml", help="settings; environment wins")


def no_arguments(prog: str, description: str | None, arguments: Sequence[str], settings: str = "") -> None:
    """For a service whose settings are all in the environment: `--help` prints, with the table of `settings` below, and
    exits 0, else `ArgumentsError`."""
    parser = OneLineParser(prog, description)
    parser.epilog = settings.replace("%", "%%")
    parser.parse_args(arguments)
