"""An HTTP or HTTPS directory: nginx, a hub mirror, another node's cache.

Its files are listed by `tonnage-manifest.json`, else by the server's directory page, else by asking for the index of
safetensors and the usual small files by name.
"""

import base64
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from tonnage_coldstart.errors import SourceError, UnknownSourceError
from tonnage_coldstart.snapshot import Snapshot, SourceFile, WholeFile
from tonnage_coldstart.sources.composition import MAX_INDEX_BYTES, Listing, compose, read_source_manifest
from tonnage_coldstart.sources.http_client import HttpClient
from tonnage_coldstart.sources.http_files import Address, HttpFiles
from tonnage_coldstart.sources.http_ranges import TRANSIENT
from tonnage_core.coldstart.file_names import INDEX_NAME
from tonnage_core.coldstart.snapshot import SINGLE_WEIGHTS, USUAL_FILES, WEIGHTS, parse_index

MAX_LISTING_BYTES = 8 << 20
URL_MARKS = "/%:@!$&'()*+,;=~"
"""What stands in a path as it is: only spaces and letters beyond ASCII are escaped."""


class HttpSource:
    """Files below a base URL; its query string goes with every request, its user name and password as Basic."""

    kind = "http"

    def __init__(
        self,
        uri: str,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        ca_file: str | None = None,
        hosts: Sequence[str] = (),
    ) -> None:
        parts = urlsplit(uri)
        if not parts.hostname:
            raise UnknownSourceError(f"{uri[:200]}: no host; write http://host/directory")
        self._headers = dict(headers)
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        netloc = parts.netloc.rpartition("@")[2]
        whole = quote(parts.path, safe=URL_MARKS)
        self._single = whole.rpartition("/")[2] if whole.endswith(WEIGHTS) else None
        path = whole.rpartition("/")[0] if self._single else whole.rstrip("/")
        self._base = (parts.scheme, netloc, path, quote(parts.query, safe=URL_MARKS + "?"))
        self._uri = f"{parts.scheme}://{netloc}{path}"
        self._client = HttpClient(timeout_s=timeout_s, ca_file=ca_file, hosts=hosts)
        self._files = HttpFiles(self._uri, self._address, self._client)

    def snapshot(self) -> Snapshot:
        """List, then pin each file's size and version with one HEAD."""
        names = [unquote(self._single)] if self._single else self._names()
        files = {name: self._files.describe(name) for name in names}
        found = {name: file for name, file in files.items() if file is not None}
        label = unquote(self._uri.rpartition("/")[2]) if self._base[2] else self._base[1]
        uri = self._uri if self._single is None else f"{self._uri}/{self._single}"
        listing = Listing(uri, label if self._single is None else names[0].removesuffix(WEIGHTS), None, found)
        snapshot = compose(listing, self._files.read_small if self._single is None else lambda name, limit: None)
        for file in snapshot.files:
            if not (file.version or file.sha256 or file.chunk_crcs):
                raise SourceError(
                    self._uri,
                    "the server tells neither ETag nor Last-Modified, so a replaced file would not be noticed; serve "
                    "one of them, or a tonnage-manifest.json with checksums",
                    file=file.name,
                )
        return snapshot

    def read_range(self, file: SourceFile, start: int, into: memoryview) -> None:
        """Fill `into` with a range whose every header was checked."""
        self._files.read_range(file, start, into)

    def open_whole(self, file: SourceFile) -> WholeFile:
        """Read a file from its beginning, where ranges are not served."""
        return self._files.open_whole(file)

    def close(self) -> None:
        """Close every connection."""
        self._client.close()

    def _names(self) -> list[str]:
        manifest = read_source_manifest(self._uri, self._files.read_small)
        if manifest is not None:
            self._files.chunk_bytes = manifest.chunk_bytes
            return [file.name for file in manifest.files]
        listed = self._directory_page()
        if any(name.endswith(WEIGHTS) for name in listed):
            return sorted(listed)
        names = set(USUAL_FILES) | set(SINGLE_WEIGHTS)
        index = self._files.read_small(INDEX_NAME, MAX_INDEX_BYTES)
        if index is not None:
            shards = set(parse_index(index, f"{self._uri}/{INDEX_NAME}").values())
            names = set(USUAL_FILES) | {INDEX_NAME} | shards
        return sorted(names)

    def _directory_page(self) -> list[str]:
        response = self._files.send("GET", "", {})
        try:
            if response.status in TRANSIENT:  # a page that passes for missing would leave files out
                self._files.check_status("", response)
            if response.status != 200 or "html" not in response.headers.get("content-type", ""):
                return []
            page = self._client.read(response, MAX_LISTING_BYTES)
        finally:
            self._client.drop(response)
        links = _Links()
        links.feed(page.decode("utf-8", "replace"))
        return links.names

    def _address(self, method: str, name: str, renew: bool) -> Address:
        scheme, netloc, path, query = self._base
        return Address(urlunsplit((scheme, netloc, f"{path}/{quote(name)}", query, "")), self._headers)


class _Links(HTMLParser):
    """The files a server's directory page links to: names without a slash."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take the href of each link."""
        href = dict(attrs).get("href") if tag == "a" else None
        if href and not href.startswith(("?", "#", ".", "/")) and "/" not in href and ":" not in href:
            name = unquote(href.split("?")[0])
            if "/" not in name and name not in self.names:
                self.names.append(name)
