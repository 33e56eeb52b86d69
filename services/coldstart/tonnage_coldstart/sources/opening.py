"""From a URI to its source."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tonnage_coldstart.errors import UnknownSourceError
from tonnage_coldstart.snapshot import Source
from tonnage_coldstart.sources.guard import refused_host
from tonnage_coldstart.sources.http import HttpSource
from tonnage_coldstart.sources.local import LocalSource
from tonnage_coldstart.sources.s3 import S3Options, S3Source
from tonnage_coldstart.sources.shown import shown_uri
from tonnage_core.addresses import resolvable

NO_HOST = frozenset('<>"\\^`{|}')
"""What stands in no host's and no bucket's name; a URI's own delimiters never get into it."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a source may need beside its URI."""

    connections: int = 8
    """Requests in flight."""
    timeout_s: float = 30.0
    """Of one connect, and of one wait for bytes."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent to HTTP sources, an Authorization among them; never to another host after a redirect."""
    ca_file: str | None = None
    """Certificates to trust beside the system's."""
    local: bool = True
    """Whether paths of this machine may be named."""
    hosts: tuple[str, ...] = ()
    """Patterns of hosts, and buckets, that may be read; redirects are held to them too. Empty: any."""
    s3: S3Options = field(default_factory=S3Options)
    """Endpoint, region and credentials of S3 sources."""


def open_source(uri: str, options: SourceOptions) -> Source:
    """The source of a URI. Raises `UnknownSourceError` naming the schemes there are."""
    _require_text(uri)
    scheme, host = _split(uri) if "://" in uri else ("", "")
    opener = OPENERS.get(scheme)
    if opener is None:
        known = ", ".join(f"{name}://" for name in OPENERS if name)
        raise UnknownSourceError(f"{shown_uri(uri)}: no source serves {scheme}://; known: a path, {known}")
    why = refused_host(host, options.hosts) if scheme not in ("", "file") else None
    if why is not None:
        raise UnknownSourceError(f"{shown_uri(uri)}: {why}")
    return opener(uri, options)


def _require_text(uri: str) -> None:
    if not uri or any(ord(char) < 32 or char == "\x7f" or "\ud800" <= char <= "\udfff" for char in uri):
        raise UnknownSourceError(f"{uri[:200]!r}: empty, with control characters, or not UTF-8")


def _split(uri: str) -> tuple[str, str]:
    """Scheme and host; a port that is no number is refused too."""
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError as error:
        raise UnknownSourceError(f"{shown_uri(uri)}: {error}") from error
    host = parts.hostname or ""
    if any(char.isspace() or char in NO_HOST for char in host) or not resolvable(host):
        raise UnknownSourceError(f"{shown_uri(uri)}: {host[:200]!r} is no host's name")
    return parts.scheme.lower(), host


def _local(uri: str, options: SourceOptions) -> Source:
    if not options.local:
        raise UnknownSourceError(f"{shown_uri(uri)}: this service is not set up to read local paths")
    if "://" not in uri:
        try:
            return LocalSource(Path(uri).expanduser())
        except RuntimeError as error:  # `~name` of nobody
            raise UnknownSourceError(f"{shown_uri(uri)}: {error}") from error
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost"):
        raise UnknownSourceError(f"{uri}: a file URI names no other host; write file:///path")
    path = unquote(parts.path)
    _require_text(path)
    return LocalSource(Path(path))


def _http(uri: str, options: SourceOptions) -> Source:
    return HttpSource(
        uri, headers=options.headers, timeout_s=options.timeout_s, ca_file=options.ca_file, hosts=options.hosts
    )


def _s3(uri: str, options: SourceOptions) -> Source:
    monotonic = time.monotonic
    try:
        return S3Source(uri, options.s3, timeout_s=options.timeout_s, ca_file=options.ca_file, monotonic=monotonic)
    except ImportError as error:
        raise UnknownSourceError(f"{shown_uri(uri)}: S3 needs obstore: pip install 'tonnage[coldstart]'") from error


OPENERS: dict[str, Callable[[str, SourceOptions], Source]] = {
    "": _local,
    "file": _local,
    "http": _http,
    "https": _http,
    "s3": _s3,
}
"""Scheme -> opener: a new source is one file and one line here."""
