"""What a settings class holds, row by row, for a page and for `--help`."""

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}
BOUNDS = {"ge": "at least", "gt": "over", "le": "at most", "lt": "below"}


@dataclass(frozen=True, slots=True)
class Row:
    """One setting. `default` is JSON, None where a value must be given."""

    name: str
    kind: str
    default: str | None
    meaning: str
    holds: type[BaseModel] | None
    """The settings class whose fields its value, or each of its entries, has."""


def rows(cls: type[BaseModel]) -> Iterator[Row]:
    """The settings of a class in the order in which it declares them, those that it inherits after its own."""
    own = cls.__annotations__
    for name, field in sorted(cls.model_fields.items(), key=lambda item: item[0] not in own):
        meaning = " ".join((field.description or "").split())
        kind, holds = _kind(field.annotation)
        yield Row(name, kind + _bounds(field), _default(field), meaning, holds)


def help_text(cls: type[BaseModel], prefix: str) -> str:
    """The settings as `--help` shows them: the variable, its default, and what it does on the next line."""
    lines = ["settings:"]
    for row in rows(cls):
        default = "" if row.default is None else f"; {row.default}"
        lines.append(f"  {prefix}{row.name.upper()}  ({row.kind}{default})")
        lines.append(textwrap.fill(row.meaning, 100, initial_indent="      ", subsequent_indent="      "))
    return "\n".join(lines)


def _kind(annotation: Any) -> tuple[str, type[BaseModel] | None]:
    """A type in words, and the settings class in it."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        found = [_kind(option) for option in inner if option is not type(None)]
        return " or ".join(words for words, _ in found), next((holds for _, holds in found if holds), None)
    if origin is Literal:
        return "one of " + ", ".join(str(option) for option in inner), None
    if origin is list:
        words, holds = _kind(inner[0])
        return f"list of {words}{'s' if holds else ''}", holds
    if origin is dict:
        words, holds = _kind(inner[1])
        return f"mapping of names to {words}{'s' if holds else ''}", holds
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping", annotation
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "one of " + ", ".join(str(option.value) for option in annotation), None
    return NAMES.get(annotation, "value"), None


def _bounds(field: FieldInfo) -> str:
    found = {
        name: f"{value:,.10g}"
        for name in BOUNDS
        for one in field.metadata
        if (value := getattr(one, name, None)) is not None
    }
    if found.keys() == {"ge", "le"}:
        return f", {found['ge']} to {found['le']}"
    return "".join(f", {BOUNDS[name]} {value}" for name, value in found.items())


def _default(field: FieldInfo) -> str | None:
    if field.is_required():
        return None
    value = field.get_default(call_default_factory=True)
    return json.dumps(TypeAdapter(Any).dump_python(value, mode="json"))
