"""YAML documents from disk: bounded, safe to load, one clear error."""

from pathlib import Path
from typing import Any

import yaml

from tonnage_core.errors import BadInputError

LARGEST_FILE = 1 << 20
"""Bytes; what people write by hand is a few KiB."""

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml where it is there: 10,000 tenants take 16 s of CPU without it."""


class YamlFileError(BadInputError):
    """A file that cannot be read, is too large, or is not YAML."""


def read_yaml(path: Path) -> Any:
    """The document in a file. Raises `YamlFileError`."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise YamlFileError(f"cannot read {path}: {reason}") from error
    if len(data) > LARGEST_FILE:
        raise YamlFileError(f"{path} is larger than {LARGEST_FILE >> 20} MiB; is it the right file?")
    return parse_yaml(data, str(path))


def parse_yaml(data: bytes | str, name: str) -> Any:
    """The document in `data`; `name` is what messages call it. Aliases are refused: a few can stand for gigabytes."""
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, Loader=LOADER)):
            raise YamlFileError(f"{name} uses YAML aliases (*name); write the values out")
        return yaml.load(text, Loader=LOADER)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise YamlFileError(f"{name} is not YAML: {' '.join(str(error).split())[:300]}") from error
