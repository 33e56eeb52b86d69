"""Endpoints in a YAML file."""

from collections import Counter
from pathlib import Path

from pydantic import ValidationError

from tonnage_router.errors import EndpointFileError
from tonnage_router.fleet import endpoint_id
from tonnage_router.ranks import by_rank
from tonnage_router.settings import EndpointSpec
from tonnage_runtime.errors import SettingsError
from tonnage_runtime.setting_faults import named_fault
from tonnage_runtime.settings import read_yaml


def read_endpoints(path: Path) -> list[EndpointSpec]:
    """The `endpoints` of the file; `EndpointFileError` names the wrong entry."""
    try:
        document = read_yaml(path)
    except SettingsError as error:
        raise EndpointFileError(str(error)) from error
    rows = document.get("endpoints") if isinstance(document, dict) else document
    if not isinstance(rows, list):
        raise EndpointFileError(f"{path}: a list under `endpoints:` is expected")
    found = []
    for number, row in enumerate(rows, 1):
        try:
            found.append(EndpointSpec.model_validate(row))
        except ValidationError as error:
            raise EndpointFileError(f"{path}: endpoint {number}: {named_fault(EndpointSpec, error)}") from error
    names = Counter(endpoint_id(spec) for spec in by_rank(found))
    if found and (most := names.most_common(1)[0])[1] > 1:
        raise EndpointFileError(f"{path}: endpoint {most[0]} is listed twice: give each a unique id or url")
    return found
