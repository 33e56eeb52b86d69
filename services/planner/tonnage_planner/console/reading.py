"""Values from other parts' documents, which may be of another version: what is not of the right kind is unknown."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

MOST_TEXT = 400
"""Characters of a text that are shown; an engine may call itself anything."""


def number(value: Any) -> float | None:
    """A finite number, else None; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def whole(value: Any) -> int | None:
    """A whole number, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text(value: Any) -> str | None:
    """A text cut to what is shown, else None."""
    return value[:MOST_TEXT] if isinstance(value, str) else None


def flag(value: Any) -> bool | None:
    """True or false, else None."""
    return value if isinstance(value, bool) else None


def texts(value: Any, most: int = 100) -> list[str]:
    """The texts of a list."""
    return [one[:MOST_TEXT] for one in value[:most] if isinstance(one, str)] if isinstance(value, list) else []


def mappings(value: Any) -> Sequence[Mapping[str, Any]]:
    """The objects of a list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def total(values: Sequence[float | None]) -> float | None:
    """The sum of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
