"""An S3-compatible store: obstore lists and signs, our own client moves the bytes.

obstore's credential chain (keys, web identity, container and instance roles) refreshes by itself; every request is
signed with what it holds then. The bodies come through the same checked ranges as those of any HTTP server, straight
into the caller's memory: stores that answer a range with status 200 are served too, as long as Content-Range is right.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from tonnage_coldstart.errors import SourceError, TransientSourceError, UnknownSourceError
from tonnage_coldstart.snapshot import Snapshot, SourceFile, WholeFile
from tonnage_coldstart.sources.composition import Listing, compose
from tonnage_coldstart.sources.http_client import HttpClient
from tonnage_coldstart.sources.http_files import Address, HttpFiles
from tonnage_core.coldstart.snapshot import WEIGHTS
from tonnage_runtime.errors import SettingsError
from tonnage_runtime.tls import client_context

SIGNED_FOR_S = 900.0
RENEW_AFTER_S = 300.0
MAX_ENTRIES = 100_000
REFUSED = re.compile(r"status code: 40[13]\b")


@dataclass(frozen=True, slots=True)
class S3Options:
    """How to reach the store; what is None comes from the client's own chain."""

    endpoint: str | None = None
    """URL of a store other than AWS, as http://minio:9000."""
    region: str | None = None
    """Region of the bucket."""
    anonymous: bool = False
    """Send no credentials."""
    path_style: bool = True
    """Bucket in the path (most stores beside AWS), not in the host name; only with an endpoint."""


class S3Source:
    """The objects below `s3://bucket/prefix`, each pinned by its ETag."""

    kind = "s3"

    def __init__(
        self, uri: str, options: S3Options, *, timeout_s: float, ca_file: str | None, monotonic: Callable[[], float]
    ) -> None:
        parts = urlsplit(uri)
        key = parts.path.strip("/")
        if options.region is not None and not re.fullmatch("[A-Za-z0-9-]{1,64}", options.region):
            raise UnknownSourceError(f"region {options.region[:80]!r}: letters, digits and hyphens are expected")
        if not parts.netloc or not key or parts.query or parts.username:
            raise UnknownSourceError(f"{uri[:200]}: write s3://bucket/path/of/the/model, credentials not in it")
        self._single = key.rpartition("/")[2] if key.endswith(WEIGHTS) else None
        self._prefix = key.rpartition("/")[0] if self._single else key
        self._bucket = parts.netloc
        self._uri = f"s3://{parts.netloc}/{self._prefix}"
        self._options = options
        self._store = _store(parts.netloc, options, timeout_s, ca_file)
        self._monotonic = monotonic
        self._signed: dict[tuple[str, str], tuple[str, float]] = {}
        self._lock = threading.Lock()
        self._client = HttpClient(timeout_s=timeout_s, ca_file=ca_file)
        self._files = HttpFiles(self._uri, self._address, self._client, renews=not options.anonymous)

    def snapshot(self) -> Snapshot:
        """One listing gives every object's size and ETag."""
        files = {file.name: file for file in self._listed()}
        if self._single is not None:
            files = {name: file for name, file in files.items() if name == self._single}
        uri = self._uri if self._single is None else f"{self._uri}/{self._single}"
        if not files:
            raise SourceError(uri, "no objects there: check bucket, path and credentials")
        label = self._prefix.rpartition("/")[2] if self._single is None else self._single.removesuffix(WEIGHTS)
        read = self._files.read_small if self._single is None else lambda name, limit: None
        return compose(
            Listing(uri, label, None, files), lambda name, limit: read(name, limit) if name in files else None
        )

    def read_range(self, file: SourceFile, start: int, into: memoryview) -> None:
        """Fill `into` with a range of the pinned version."""
        self._files.read_range(file, start, into)

    def open_whole(self, file: SourceFile) -> WholeFile:
        """Read an object from its beginning, where ranges are not served."""
        return self._files.open_whole(file)

    def close(self) -> None:
        """Close every connection."""
        self._client.close()

    def _listed(self) -> Iterable[SourceFile]:
        import obstore

        seen = 0
        with _translated(self._uri):
            for batch in obstore.list(self._store, prefix=self._prefix or None):
                for found in batch:
                    seen += 1
                    if seen > MAX_ENTRIES:
                        raise SourceError(self._uri, f"over {MAX_ENTRIES} objects: give the path of one model")
                    name = found["path"].removeprefix(self._prefix).lstrip("/")
                    yield SourceFile(name, found["size"], _version(found))

    def _address(self, method: str, name: str, renew: bool) -> Address:
        key = f"{self._prefix}/{name}" if self._prefix else name
        if self._options.anonymous:
            return Address(self._plain(key), {})
        now = self._monotonic()
        with self._lock:
            url, signed_at = self._signed.get((method, name), ("", float("-inf")))
        if renew or now - signed_at > RENEW_AFTER_S:
            import obstore

            with _translated(self._uri):
                url = obstore.sign(
                    self._store, "HEAD" if method == "HEAD" else "GET", key, timedelta(seconds=SIGNED_FOR_S)
                )
            with self._lock:
                self._signed[(method, name)] = (url, now)
        return Address(url, {})

    def _plain(self, key: str) -> str:
        options = self._options
        if options.endpoint is None:
            return f"https://{self._bucket}.s3.{options.region or 'us-east-1'}.amazonaws.com/{quote(key)}"
        base = options.endpoint.rstrip("/")
        if options.path_style:
            return f"{base}/{self._bucket}/{quote(key)}"
        scheme, _, host = base.partition("://")
        return f"{scheme}://{self._bucket}.{host}/{quote(key)}"


def _store(bucket: str, options: S3Options, timeout_s: float, ca_file: str | None) -> Any:
    from obstore.store import S3Store

    config: dict[str, Any] = {"skip_signature": options.anonymous}
    if options.endpoint is not None:
        config |= {"endpoint": options.endpoint, "virtual_hosted_style_request": not options.path_style}
    if options.region is not None or options.endpoint is not None:
        config["region"] = options.region or "us-east-1"
    client: Any = {
        "allow_http": (options.endpoint or "").startswith("http://"),
        "timeout": timedelta(seconds=timeout_s),
        "connect_timeout": timedelta(seconds=timeout_s),
    }
    if ca_file is not None:
        client["root_certificate"] = _authorities(f"s3://{bucket}", ca_file)
    retry: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=timeout_s)}  # the transfer itself tries again
    with _translated(f"s3://{bucket}"):
        try:
            return S3Store(bucket, client_options=client, retry_config=retry, **config)
        except ValueError as error:  # a form of certificates that OpenSSL alone takes
            raise SourceError(f"s3://{bucket}", f"{ca_file or 'the client'}: {error}") from error


def _authorities(uri: str, ca_file: str) -> bytes:
    """The file's certificates, which are believed beside the system's. It was read at the start: what cannot be read
    now is being renewed."""
    try:
        client_context(ca_file)
        return Path(ca_file).read_bytes()
    except (SettingsError, OSError) as error:
        raise TransientSourceError(uri, str(error)) from error


@contextlib.contextmanager
def _translated(uri: str) -> Iterator[None]:
    """obstore's errors in our words; what may pass is marked so."""
    from obstore import exceptions

    try:
        yield
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise SourceError(uri, f"credentials are missing, wrong or expired ({_short(error)})") from error
    except (FileNotFoundError, exceptions.InvalidPathError) as error:
        raise SourceError(uri, f"not there ({_short(error)})") from error
    except exceptions.BaseError as error:
        told = _short(error)
        if REFUSED.search(told):
            raise SourceError(uri, f"credentials are missing, wrong or expired ({told})") from error
        if "credential" in told.lower() or "signing" in told.lower():
            raise SourceError(uri, f"no credentials: give keys, a role or ask for anonymous access ({told})") from error
        raise TransientSourceError(uri, told) from error


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _version(found: Mapping[str, Any]) -> str:
    """The ETag with its quotes, as the store sends it with every body."""
    tag = str(found.get("e_tag") or "")
    if not tag or tag.startswith(('"', "W/")):
        return tag
    return f'"{tag}"'
