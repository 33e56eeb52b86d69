"""Number options that take only finite numbers: nan compares as neither too small nor too large, so ranges pass it."""

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A `click.FloatRange` that also refuses nan and the infinities."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; a click error (exit 2) that names the option for what is none."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number
