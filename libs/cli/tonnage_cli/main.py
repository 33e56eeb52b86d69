"""The `tonnage` command: one module a command, errors as one line, exit 0 ok, 1 check failed, 2 bad input."""

import sys
from collections.abc import Sequence

import click
import typer
from tonnage_core.errors import BadInputError, TonnageError

app = typer.Typer(
    name="tonnage",
    help="Fleet operations for LLM inference: measure, plan, route, scale and start with the same numbers.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Each command takes --json for one JSON document on stdout."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code and never lets an expected error show a traceback."""
    command = typer.main.get_command(app)
    try:
        result = command.main(list(arguments), prog_name="tonnage", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 0
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
    print("tonnage: " + " ".join(message.split()), file=sys.stderr)
    return code


def main() -> None:
    """Console entry point."""
    sys.exit(run(sys.argv[1:]))
