"""Read fields of an untrusted config.json: the first name present wins, and a wrong value is one clear error."""

from collections.abc import Mapping, Sequence
from typing import Any

from tonnage_core.errors import BadInputError

LARGEST = 1 << 31
"""No dimension of a model is larger; a larger one is a mistake, not a model."""


class ConfigError(BadInputError):
    """A model config lacks a field or holds an impossible value."""


class UnknownArchitectureError(ConfigError):
    """A model config describes layers that no formula here covers."""


class Fields:
    """Typed access to one mapping of a config; `where` names it in errors."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def get(self, *names: str) -> Any:
        """The first of `names` that is present and not null, else None."""
        for name in names:
            value = self.values.get(name)
            if value is not None:
                return value
        return None

    def section(self, *names: str) -> "Fields | None":
        """A nested mapping, or None."""
        for name in names:
            value = self.values.get(name)
            if isinstance(value, Mapping):
                return Fields(value, f"{self.where}.{name}")
        return None

    def optional(self, *names: str, low: int = 1, high: int = LARGEST) -> int | None:
        """An integer in [low, high], or None when no name is present."""
        for name in names:
            value = self.values.get(name)
            if value is not None:
                return self.check(name, value, low, high)
        return None

    def every_layer(self, *names: str, default: int | None = None, low: int = 1) -> int:
        """An integer, or a list that repeats one integer for every layer; a list of several is an error."""
        name = next((one for one in names if self.values.get(one) is not None), names[0])
        value = self.values.get(name)
        if not isinstance(value, list | tuple) or not value:
            return self.integer(*names, default=default, low=low)
        found = {self.check(name, item, low, LARGEST) for item in value}
        if len(found) > 1:
            raise UnknownArchitectureError(f"{self.where}: {name} differs between layers, which is not covered")
        return found.pop()

    def integer(self, *names: str, default: int | None = None, low: int = 1, high: int = LARGEST) -> int:
        """An integer in [low, high]; `ConfigError` when absent and there is no default."""
        value = self.optional(*names, low=low, high=high)
        if value is not None:
            return value
        if default is None:
            raise ConfigError(f"{self.where} has no {' or '.join(names)}; give the model's own config.json")
        return default

    def check(self, name: str, value: Any, low: int, high: int) -> int:
        """`value` as an integer in [low, high]; NaN, text and truth values are errors."""
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value in _INFINITE:
            raise ConfigError(f"{self.where}: {name} must be a whole number, not {str(value)[:40]!r}")
        if int(value) != value or not low <= value <= high:
            raise ConfigError(f"{self.where}: {name} is {value}; it must be a whole number from {low} to {high}")
        return int(value)

    def number(self, *names: str, default: float) -> float:
        """A finite number that is not negative."""
        value = self.get(*names)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LARGEST:
            raise ConfigError(f"{self.where}: {names[0]} must be a number from 0, not {str(value)[:40]!r}")
        return float(value)

    def flag(self, *names: str, default: bool = False) -> bool:
        """A truth value."""
        value = self.get(*names)
        return default if value is None else bool(value)

    def text(self, *names: str, default: str = "") -> str:
        """A string; other types give the default."""
        value = self.get(*names)
        return value if isinstance(value, str) else default

    def sequence(self, *names: str) -> Sequence[Any] | None:
        """A list, or None when absent or of another type."""
        value = self.get(*names)
        return value if isinstance(value, list | tuple) else None


_INFINITE = (float("inf"), float("-inf"))
