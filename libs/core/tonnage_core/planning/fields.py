"""Read a specification field by field: a wrong value, a missing or an unknown field is one error with its path."""

from collections.abc import Mapping, Sequence
from typing import Any

from tonnage_core.planning.errors import PlanSpecError


def shown(value: object) -> str:
    """A value as an error message can hold it."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # an integer of more digits than Python prints
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."


class Fields:
    """One mapping of the specification; `path` is where it stands, for messages."""

    def __init__(self, values: object, path: str = "") -> None:
        if not isinstance(values, Mapping):
            raise PlanSpecError(f"{path or 'the plan spec'} is {shown(values)}; a mapping of fields is expected")
        self._values: Mapping[Any, Any] = values
        self._path = path
        self._read: set[str] = set()

    def path(self, name: str) -> str:
        """The field as messages name it."""
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        """Whether the field is there with a value."""
        self._read.add(name)
        return self._values.get(name) is not None

    def get(self, name: str) -> Any:
        """The raw value, None when absent."""
        self._read.add(name)
        return self._values.get(name)

    def need(self, name: str) -> Any:
        """The raw value of a field that must be there."""
        value = self.get(name)
        if value is None:
            raise PlanSpecError(f"{self.path(name)} is missing; give it a value")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A non-empty string."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        value = self.need(name)
        if not isinstance(value, str) or not value.strip() or len(value) > 4096 or not _is_unicode(value):
            raise PlanSpecError(f"{self.path(name)} is {shown(value)}; a text is expected")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number from `low` to `high`."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        return number(self.need(name), self.path(name), low, high)

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number from `low` to `high`."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        return whole(self.need(name), self.path(name), low, high)

    def fields(self, name: str) -> "Fields":
        """A mapping inside."""
        return Fields(self.need(name), self.path(name))

    def items(self, name: str, most: int = 64) -> Sequence[Any]:
        """A list with at least one and at most `most` entries."""
        value = self.need(name)
        if not isinstance(value, list | tuple) or not 1 <= len(value) <= most:
            raise PlanSpecError(f"{self.path(name)} is {shown(value)}; a list of 1 to {most} entries is expected")
        return value

    def names(self) -> Sequence[str]:
        """Every field there is."""
        return [str(name) for name in self._values]

    def only(self, *known: str) -> None:
        """Refuse fields that are not `known`."""
        for name in self._values:
            if name not in known:
                raise PlanSpecError(f"{self.path(shown(name).strip(chr(39)))} is unknown; known are {', '.join(known)}")


def _is_unicode(text: str) -> bool:
    """Half of a surrogate pair cannot be written out again."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def number(value: object, path: str, low: float, high: float) -> float:
    """A finite number from `low` to `high`."""
    # Compared before it is converted: an integer may be larger than any float. No NaN is in the range.
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise PlanSpecError(f"{path} is {shown(value)}; a number from {low:g} to {high:g} is expected")
    return float(value)


def whole(value: object, path: str, low: int, high: int) -> int:
    """A whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise PlanSpecError(f"{path} is {shown(value)}; a whole number from {low} to {high} is expected")
    return value
