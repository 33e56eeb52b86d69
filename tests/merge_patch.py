"""JSON merge patch, as the API server applies it."""

from typing import Any


def merge(old: Any, new: Any) -> Any:
    """RFC 7396."""
    if not isinstance(new, dict):
        return new
    made = dict(old) if isinstance(old, dict) else {}
    for key, value in new.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merge(made.get(key), value)
    return made
