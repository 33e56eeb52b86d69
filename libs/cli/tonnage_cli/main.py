"""The `tonnage` command: one module a command, errors as one line, exit 0 ok, 1 check failed, 2 bad input."""

import importlib
import sys
from collections.abc import Sequence

import click

from tonnage_core.errors import BadInputError, TonnageError

COMMANDS: dict[str, str] = {
    "accuracy": "accuracy",
    "autoscale": "autoscale",
    "bench": "bench",
    "compile-cache": "compile_cache",
    "load": "load",
    "memory": "memory",
    "plan": "plan",
    "predict": "predict",
    "probe": "probe",
    "replay": "replay",
    "simulate": "simulate",
    "stage": "stage",
    "timeline": "timeline",
    "up": "up",
}
"""Command name -> module of `tonnage_cli` with a click command named `command`; imported only when used."""


class LazyGroup(click.Group):
    """A group that imports a command's module when it is asked for, so that start-up stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command by name."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or None when there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = importlib.import_module(f"tonnage_cli.{COMMANDS[cmd_name]}").command
        return found


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="tonnage")
def root() -> None:
    """Fleet operations for LLM inference: measure, plan, route, scale and start with the same numbers.

    Each command takes --json for one JSON document on stdout.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code and never lets an expected error show a traceback."""
    try:
        result = root.main(list(arguments) or ["--help"], prog_name="tonnage", standalone_mode=False)
    except click.ClickException as error:
        return _fail(error.format_message(), 2)
    except BadInputError as error:
        return _fail(str(error), 2)
    except TonnageError as error:
        return _fail(str(error), 1)
    except (click.Abort, KeyboardInterrupt):
        return 130
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    # A file's own words may be in it: they write a line, and give the terminal no orders.
    told = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in " ".join(message.split()))
    print(f"tonnage: {told}", file=sys.stderr)
    return code


def main() -> None:
    """Console entry point."""
    sys.exit(run(sys.argv[1:]))
