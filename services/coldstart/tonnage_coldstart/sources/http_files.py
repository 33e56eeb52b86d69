"""Files behind HTTP: sizes and versions by HEAD, checked ranges, whole bodies. What an address is, the source says."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tonnage_coldstart.errors import SourceError, WholeFileOnlyError
from tonnage_coldstart.manifest import MAX_MANIFEST_BYTES
from tonnage_coldstart.snapshot import SourceFile, WholeFile
from tonnage_coldstart.sources.http_client import HttpClient, Response, wall_s
from tonnage_coldstart.sources.http_ranges import Asked, check_range, check_status, version_of
from tonnage_core.coldstart.fetch_plan import CHUNK_BYTES
from tonnage_core.coldstart.file_names import MANIFEST_NAME

ERROR_CODE = re.compile(rb"<Code>(\w{1,64})</Code>")
MAX_ERROR_BYTES = 16384


@dataclass(frozen=True, slots=True)
class Address:
    """Where one request goes, and the headers it carries."""

    url: str
    headers: Mapping[str, str]


AddressOf = Callable[[str, str, bool], Address]
"""Method, file name and whether credentials must be resolved anew -> the address."""


class HttpFiles:
    """The files of one source; safe to call from several threads at once."""

    def __init__(
        self, uri: str, address: AddressOf, client: HttpClient, *, renews: bool = False, missing: tuple[int, ...] = ()
    ) -> None:
        self._uri = uri
        self._address = address
        self._client = client
        self._renews = renews
        self._missing = (404, 410, *missing)
        self.chunk_bytes = CHUNK_BYTES

    def describe(self, name: str) -> SourceFile | None:
        """A file's size and version, None when it is not there; whether it is served in ranges is tried out."""
        response = self.send("HEAD", name, {})
        self._client.drop(response)
        if response.status in self._missing:
            return None
        length = response.headers.get("content-length", "")
        if response.status in (200, 206) and length.isascii() and length.isdigit() and len(length) < 19:
            size, version = int(length), version_of(response.headers)
        else:
            size, version = self._probe_size(name)
        file = SourceFile(name, size, version)
        if size <= self.chunk_bytes:
            return file
        return file if self._serves_ranges(file) else SourceFile(name, size, version, ranges=False)

    def read_range(self, file: SourceFile, start: int, into: memoryview) -> None:
        """Fill `into` with a range whose every header was checked."""
        if not into:
            return
        headers = {"Range": f"bytes={start}-{start + len(into) - 1}"}
        if file.version.startswith('"'):
            headers["If-Match"] = file.version
        response = self.send("GET", file.name, headers)
        asked = Asked(self._uri, file.name, start, len(into), file.size_bytes, file.version)
        try:
            self.check_status(file.name, response)
            check_range(asked, response.status, response.headers)
            self._client.receive(response, into)
        finally:
            self._client.drop(response)

    def open_whole(self, file: SourceFile) -> WholeFile:
        """Read a file from its beginning, where ranges are not served."""
        response = self.send("GET", file.name, {})
        asked = Asked(self._uri, file.name, 0, file.size_bytes, file.size_bytes, file.version)
        try:
            self.check_status(file.name, response)
            check_range(asked, response.status, response.headers)
        except SourceError:
            self._client.drop(response)
            raise
        return _Whole(self._client, response)

    def read_small(self, name: str, limit_bytes: int) -> bytes | None:
        """A small file whole, None when it is not there."""
        response = self.send("GET", name, {})
        try:
            if response.status in self._missing or (name == MANIFEST_NAME and response.status == 403):
                return None
            self.check_status(name, response)
            return self._client.read(response, min(limit_bytes, MAX_MANIFEST_BYTES))
        finally:
            self._client.drop(response)

    def send(self, method: str, name: str, headers: Mapping[str, str]) -> Response:
        """Send a request; credentials that are refused are resolved anew once, where the source can."""
        address = self._address(method, name, False)
        response = self._client.request(method, address.url, {**address.headers, **headers})
        if response.status not in (401, 403) or not self._renews:
            return response
        self._client.drop(response)
        address = self._address(method, name, True)
        return self._client.request(method, address.url, {**address.headers, **headers})

    def check_status(self, name: str, response: Response) -> None:
        """Raise for a status that brings no bytes, with the error's code where an object store tells one."""
        code = ""
        if response.status >= 400 and "xml" in response.headers.get("content-type", ""):
            length = response.body.length
            raw = self._client.read(response, MAX_ERROR_BYTES) if (length or 0) <= MAX_ERROR_BYTES else b""
            found = ERROR_CODE.search(raw)
            code = found[1].decode() if found else ""
        check_status(self._uri, name, response.status, response.headers, wall_s(), code=code)

    def _probe_size(self, name: str) -> tuple[int, str]:
        """Size by a one-byte range, where HEAD is not answered."""
        response = self.send("GET", name, {"Range": "bytes=0-0"})
        try:
            self.check_status(name, response)
        finally:
            self._client.drop(response)
        total = response.headers.get("content-range", "").rpartition("/")[2]
        length = total if response.status == 206 else total or response.headers.get("content-length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 19):
            raise SourceError(self._uri, "the server tells no size", file=name)
        return int(length), version_of(response.headers)

    def _serves_ranges(self, file: SourceFile) -> bool:
        try:
            self.read_range(file, 0, memoryview(bytearray(8)))
        except WholeFileOnlyError:
            return False
        return True


class _Whole:
    """A response read from its beginning."""

    def __init__(self, client: HttpClient, response: Response) -> None:
        self._client = client
        self._response = response

    def read_into(self, into: memoryview) -> None:
        """The next bytes."""
        self._client.receive(self._response, into)

    def close(self) -> None:
        """Done, or given up."""
        self._client.drop(self._response)
