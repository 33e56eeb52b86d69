"""Directory options that refuse an empty name, which a path library takes for the current one, and one too long."""

import errno
import os
from pathlib import Path
from typing import Any

import click


class Directory(click.Path):
    """A directory, there or not; as a script's unset variable gives it, an empty name is an error."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; a click error (exit 2) that names the option for what is none."""
        if value == "":
            self.fail("an empty name: a directory is expected.", param, ctx)
        try:
            os.stat(value)
        except OSError as error:
            if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
                self.fail(f"{str(value)[:200]}: {error.strerror}.", param, ctx)
        return super().convert(value, param, ctx)
