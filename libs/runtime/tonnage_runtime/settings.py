"""Settings: the environment is read once, a YAML file gives structure, unknown keys are errors.

A service's settings are a frozen `Settings` subclass; field `drain_timeout_s` of the router is the environment
variable `TONNAGE_ROUTER_DRAIN_TIMEOUT_S`. The environment wins over the file; the file wins over the default.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from tonnage_runtime.errors import SettingsError
from tonnage_runtime.setting_faults import fault, unknown
from tonnage_runtime.yaml_file import LOADER


class Settings(BaseModel):
    """Base of every deployable's settings: immutable, closed to unknown keys, numbers finite, each field documented."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


S = TypeVar("S", bound=Settings)


def read_yaml(path: Path) -> Any:
    """The document in a YAML file; `SettingsError` names the file and the line when it cannot be read."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error


def load_settings(cls: type[S], service: str, environ: Mapping[str, str], file: Path | None = None) -> S:
    """Settings of `service` from the environment and, if given, a YAML file.

    Raises `SettingsError` for an unknown key or a value of the wrong type, naming where it came from.
    """
    prefix = f"TONNAGE_{service.upper()}_"
    values: dict[str, Any] = {}
    if file is not None:
        document = read_yaml(file) or {}
        if not isinstance(document, dict):
            raise SettingsError(f"{file}: a mapping of settings is expected, found {type(document).__name__}")
        values.update(document)
    sources = dict.fromkeys(values, str(file))
    for name, value in environ.items():
        if not name.startswith(prefix):
            continue
        field = name.removeprefix(prefix).lower()
        if field not in cls.model_fields:
            raise SettingsError(f"{name}: {unknown(field, cls.model_fields)}")
        values[field] = _structured(value)
        sources[field] = name
    return validated(cls, values, prefix + "*" if file is None else f"{file} and {prefix}*", sources)


def validated(cls: type[S], values: Mapping[str, Any], source: str, sources: Mapping[str, str] | None = None) -> S:
    """`values` as `cls`; `SettingsError` with one line for the first wrong field, which begins with the `sources` of
    that field, or `source`."""
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        where, words = fault(cls, error)
        told = (sources or {}).get(str(where[0]), source) if where else source
        raise SettingsError(f"{told}: {'.'.join(str(part) for part in where) or 'settings'}: {words}") from error


def _structured(value: str) -> Any:
    """Lists and mappings in the environment are written as JSON or YAML flow; anything else stays text."""
    if value[:1] in ("[", "{"):
        try:
            return yaml.safe_load(value)
        except yaml.YAMLError:
            return value
    return value
