"""The endpoints from the settings, or from a file that is read again when it changes."""

from collections.abc import Sequence
from pathlib import Path

from tonnage_planner.settings import EndpointSettings
from tonnage_runtime.errors import SettingsError
from tonnage_runtime.settings import Settings, read_yaml, validated


class _EndpointsDocument(Settings):
    endpoints: tuple[EndpointSettings, ...]


class StaticEndpoints:
    """A fixed list; raises `SettingsError` for a URL listed twice."""

    def __init__(self, endpoints: Sequence[EndpointSettings]) -> None:
        self._endpoints = _unique(endpoints, "endpoints")

    def endpoints(self) -> Sequence[EndpointSettings]:
        """The list given."""
        return self._endpoints


class FileEndpoints:
    """A YAML file with `endpoints:`, read again when its time or size changes (a mounted ConfigMap does both)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._endpoints: Sequence[EndpointSettings] = ()

    def endpoints(self) -> Sequence[EndpointSettings]:
        """The list in the file now; raises `SettingsError` when it is gone or wrong."""
        try:
            stat = self._path.stat()
        except OSError as error:
            raise SettingsError(f"{self._path}: cannot be read: {error.strerror}") from error
        seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if seen != self._seen:
            document = validated(_EndpointsDocument, _mapping(self._path), source=str(self._path))
            self._endpoints = _unique(document.endpoints, str(self._path))
            self._seen = seen
        return self._endpoints


def _mapping(path: Path) -> dict[str, object]:
    document = read_yaml(path)
    if not isinstance(document, dict):
        raise SettingsError(f"{path}: a mapping with `endpoints:` is expected")
    return document


def _unique(endpoints: Sequence[EndpointSettings], source: str) -> tuple[EndpointSettings, ...]:
    seen: set[str] = set()
    for endpoint in endpoints:
        if endpoint.url in seen:
            raise SettingsError(f"{source}: {endpoint.url} is listed twice: keep one")
        seen.add(endpoint.url)
    return tuple(endpoints)
