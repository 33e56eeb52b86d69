"""What is wrong with a setting, in words that say how it is put right."""

import difflib
import json
from collections.abc import Collection
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

CONTAINERS = {"list_type": "a list", "dict_type": "a mapping", "model_type": "a mapping"}
"""What pydantic's errors ask for, where an example of it helps."""
OWN_WORDS = "Value error, "
"""What pydantic puts before the words of a validator of ours."""


def fault(cls: type[BaseModel], error: ValidationError) -> tuple[tuple[int | str, ...], str]:
    """Where the first fault lies, and what it is. A name that does not exist goes before one that is missing."""
    faults = error.errors(include_url=False)
    first = next((one for one in faults if one["type"] == "extra_forbidden"), faults[0])
    return first["loc"], _words(cls, first)


def named_fault(cls: type[BaseModel], error: ValidationError) -> str:
    """`fault` in one line, its place with dots between: `slo.ttft_ms: Input should be greater than 0`."""
    where, words = fault(cls, error)
    return f"{'.'.join(str(part) for part in where) or 'settings'}: {words}"


def unknown(name: str, known: Collection[str]) -> str:
    """The words for a name that is no setting: the nearest one, if there is, and all there are."""
    nearest = difflib.get_close_matches(name, known, 1)
    meant = f"is {nearest[0]} meant? " if nearest else ""
    return f"no such setting; {meant}known: {', '.join(sorted(known))}"


def _words(cls: type[BaseModel], one: ErrorDetails) -> str:
    *above, last = one["loc"] or ("",)
    if one["type"] == "extra_forbidden" and (holder := _model(_at(cls, above))) is not None:
        return unknown(str(last), holder.model_fields)
    if one["type"] in CONTAINERS and (wanted := _at(cls, one["loc"])) is not None:
        return f"{CONTAINERS[one['type']]} is expected, such as {_example(wanted)}"
    return one["msg"].removeprefix(OWN_WORDS)


def _at(annotation: Any, where: Collection[int | str]) -> Any:
    """The type at a place below `annotation`; None where that does not say."""
    for part in where:
        annotation = _inside(annotation, part)
    return annotation


def _inside(annotation: Any, part: int | str) -> Any:
    for option in _options(annotation):
        if get_origin(option) in (list, dict):
            return get_args(option)[-1]
    model = _model(annotation)
    field = model.model_fields.get(str(part)) if model is not None else None
    return None if field is None else field.annotation


def _model(annotation: Any) -> type[BaseModel] | None:
    """The settings class that a type is, or is beside None."""
    for option in _options(annotation):
        if isinstance(option, type) and get_origin(option) is None and issubclass(option, BaseModel):
            return option
    return None


def _options(annotation: Any) -> tuple[Any, ...]:
    """The types of a union; any other type alone."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _example(annotation: Any) -> str:
    """What a value of a type looks like, in JSON with dots for what it may hold."""
    annotation = next((option for option in _options(annotation) if option is not type(None)), annotation)
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is list:
        return f"[{_example(inner[0])}]"
    if origin is dict:
        return f'{{"...": {_example(inner[1])}}}'
    if (model := _model(annotation)) is not None:
        required = [name for name, field in model.model_fields.items() if field.is_required()]
        names = required or list(model.model_fields)[:1]
        return "{" + ", ".join(f"{json.dumps(name)}: ..." for name in names) + "}"
    return '"..."' if annotation is str else "..."
