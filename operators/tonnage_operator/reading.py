"""Reading custom resources: fields by path, with a default for what an older stored object does not have."""

from collections.abc import Mapping
from typing import Any, TypeVar

from tonnage_core.errors import BadInputError

T = TypeVar("T")
COUNT_MOST = 100_000
"""The largest number of anything; the definitions say the same, and API objects hold 32 bits."""


class SpecError(BadInputError):
    """A resource that cannot be followed; the message names the field and what it takes. What runs is not touched."""


class Reader:
    """The fields of a mapping. Unknown fields are left alone: they are a newer version's."""

    def __init__(self, found: Any, path: str = "spec") -> None:
        if found is not None and not isinstance(found, Mapping):
            raise SpecError(f"{path}: a mapping is expected")
        self._found: Mapping[str, Any] = found or {}
        self._path = path

    def part(self, name: str) -> "Reader":
        """The mapping under `name`; empty when absent."""
        return Reader(self._found.get(name), f"{self._path}.{name}")

    def text(self, name: str, default: str | None = None) -> str:
        """A string; `SpecError` when it is missing and has no default."""
        found = self._found.get(name)
        if found is None and default is not None:
            return default
        if not isinstance(found, str) or not (found or default is not None):
            raise SpecError(f"{self._path}.{name}: text is expected")
        return found

    def word(self, name: str, default: str | None = None) -> str:
        """Text that becomes one argument of a command: it is no flag and has no control characters."""
        found = self.text(name, default)
        if found.startswith("-") or not found.isprintable():
            raise SpecError(f"{self._path}.{name}: {found[:80]!r} cannot be an argument of a command")
        return found

    def whole(self, name: str, default: int, least: int = 0, most: int = COUNT_MOST) -> int:
        """An integer from `least` to `most`."""
        found = self._found.get(name, default)
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= most:
            told = f"a whole number of at least {least} and at most {most} is expected"
            raise SpecError(f"{self._path}.{name}: {told}, found {str(found)[:40]}")
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        """true or false."""
        found = self._found.get(name, default)
        if not isinstance(found, bool):
            raise SpecError(f"{self._path}.{name}: true or false is expected")
        return found

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        """One of a few words."""
        found = self._found.get(name, default)
        if found not in choices:
            raise SpecError(f"{self._path}.{name}: one of {', '.join(choices)} is expected, found {found!r}")
        return str(found)

    def mapping(self, name: str) -> dict[str, Any]:
        """A mapping; empty when absent."""
        return dict(self.part(name)._found)

    def items(self, name: str) -> list[Any]:
        """A list; empty when absent."""
        found = self._found.get(name) or []
        if not isinstance(found, list):
            raise SpecError(f"{self._path}.{name}: a list is expected")
        return found

    def mappings(self, name: str) -> list[Mapping[str, Any]]:
        """A list of mappings; empty when absent."""
        found = self.items(name)
        if not all(isinstance(one, Mapping) for one in found):
            raise SpecError(f"{self._path}.{name}: each item is a mapping")
        return found

    def labels(self, name: str) -> dict[str, str]:
        """A mapping from text to text; empty when absent."""
        found = self.mapping(name)
        if not all(isinstance(value, str) for value in found.values()):
            raise SpecError(f"{self._path}.{name}: each value is text: put it in quotes")
        return found

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._found.get(name) is not None
