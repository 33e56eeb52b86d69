"""Load models and GPUs by reference: a catalogue name, or a file. The only place of the planner that reads files."""

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from tonnage_core.errors import BadInputError
from tonnage_core.hardware import GpuSpec, find_gpu
from tonnage_core.hardware.profile import gpu_from_profile
from tonnage_core.models import ModelShape, shape_from_config

LARGEST_FILE = 8 << 20
"""Bytes; a config.json is a few KiB, so a larger file is something else."""


class UnusableReferenceError(BadInputError):
    """A model or GPU reference that leads nowhere, or to a file that cannot be used."""


def read_json(path: Path | Traversable) -> Any:
    """A JSON file of at most 8 MiB; one clear error for anything else."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UnusableReferenceError(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > LARGEST_FILE:
        raise UnusableReferenceError(
            f"{path} is larger than {LARGEST_FILE >> 20} MiB: give a model's config.json, not its weights"
        )
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnusableReferenceError(f"{path} is not JSON: {error}") from error


def catalogue() -> Traversable:
    """The folder of published configs that ships with the package."""
    return resources.files("tonnage_core.models") / "catalogue"


@lru_cache(maxsize=1)
def model_names() -> dict[str, str]:
    """Every name the catalogue answers to -> its file, for `ORG/NAME` and for `ORG--NAME`."""
    names = {entry.name[:-5]: entry.name for entry in catalogue().iterdir() if entry.name.endswith(".json")}
    names.pop("aliases")
    found = {**names, **{name.replace("--", "/", 1): file for name, file in names.items()}}
    for alias, target in read_json(catalogue() / "aliases.json").items():
        found[alias] = found[target]
    return found


def load_model(reference: str) -> ModelShape:
    """A model by catalogue name, by directory, or by the path of a config.json."""
    if not reference or "\0" in reference:
        raise UnusableReferenceError("a model reference is empty; give a catalogue name or the path of a config.json")
    if reference in model_names():
        return _from_catalogue(reference)
    path = Path(reference)
    # `os.path` answers no for a name too long for the file system, where `Path` raises.
    if os.path.isdir(path):
        return shape_from_config(_with_quantization(path), path.name or reference)
    if os.path.isfile(path):
        return shape_from_config(
            _mapping(read_json(path), path), path.stem if path.name != "config.json" else path.parent.name
        )
    known = sorted(name for name in model_names() if "/" in name)
    raise UnusableReferenceError(
        f"no model {reference[:120]!r}: give the path of a config.json, a directory with one, or one of {len(known)}"
        f" catalogue names such as {', '.join(name for name in known if name.startswith('meta-llama/Llama-3.1'))}"
    )


@lru_cache(maxsize=256)
def _from_catalogue(reference: str) -> ModelShape:
    file = catalogue() / model_names()[reference]
    return shape_from_config(_mapping(read_json(file), file), reference.replace("--", "/", 1))


def _mapping(value: Any, path: Path | Traversable) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UnusableReferenceError(f"{path} holds no JSON object; give a model's config.json")
    return value


def _with_quantization(directory: Path) -> Mapping[str, Any]:
    """A directory's config.json, with the quantisation of hf_quant_config.json where the config has none."""
    config = dict(_mapping(read_json(directory / "config.json"), directory))
    beside = directory / "hf_quant_config.json"
    if "quantization_config" not in config and beside.is_file():
        block = dict(_mapping(read_json(beside), beside))
        inner = block.get("quantization")
        config["quantization_config"] = {"quant_method": "modelopt", **(inner if isinstance(inner, Mapping) else block)}
    return config


PROFILE_SCHEMA, REPORT_SCHEMA = "tonnage.gpu_profile/1", "tonnage.probe/1"


def load_gpu(reference: str) -> GpuSpec:
    """A GPU by name or alias, or by the path of a GpuProfile or of a report of `tonnage probe`.

    A report over several GPUs needs `PATH#INDEX`.
    """
    document = load_profile(reference)
    return find_gpu(reference) if document is None else gpu_from_profile(document)


def load_profile(reference: str) -> Mapping[str, Any] | None:
    """The GpuProfile that a `--gpu` reference is the path of; None for a name of the catalogue."""
    name, _, index = reference.partition("#")
    path = Path(name) if name and "\0" not in name else None
    if path is None or path.suffix != ".json":
        return None
    if not os.path.isfile(path):
        raise UnusableReferenceError(f"{path}: no such file; give a GpuProfile as `tonnage probe --json` writes it")
    found = _profile_of(_document(path), path, index)
    _of_schema(found, PROFILE_SCHEMA, path)
    return found


def _of_schema(document: Mapping[str, Any], known: str, path: Path) -> None:
    """A document that says another schema is refused: its fields may mean something else."""
    if document.get("schema", known) != known:
        raise UnusableReferenceError(f"{path} is of schema {str(document['schema'])[:40]!r}; {known!r} is read here")


def _document(path: Path) -> Mapping[str, Any]:
    document = read_json(path)
    if not isinstance(document, Mapping):
        raise UnusableReferenceError(f"{path} holds no JSON object; give a GpuProfile as `tonnage probe` writes it")
    return document


def _profile_of(document: Mapping[str, Any], path: Path, index: str) -> Mapping[str, Any]:
    """The one profile of a probe report that `index` names, or the document itself."""
    gpus = document.get("gpus")
    if not isinstance(gpus, list):
        return document
    _of_schema(document, REPORT_SCHEMA, path)
    if not index and len(gpus) != 1:
        raise UnusableReferenceError(f"{path} reports on {len(gpus)} GPUs; name one, such as {path}#0")
    number = index or "0"
    there = number.isdecimal() and len(number) < 10 and int(number) < len(gpus)
    if not there or not isinstance(gpus[int(number)], Mapping):
        raise UnusableReferenceError(f"{path} has no GPU {number[:20]!r}; it reports on {len(gpus)}, counted from 0")
    found: Mapping[str, Any] = gpus[int(number)]
    return found
