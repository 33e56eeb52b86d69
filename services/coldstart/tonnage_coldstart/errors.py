"""Errors of the cold-start service. `outcome` is the small enum that metrics and jobs carry."""

import errno
from pathlib import Path

from tonnage_core.errors import BadInputError, TonnageError


class ColdstartError(TonnageError):
    """Root of the service's own tree."""

    outcome = "error"


class UnknownSourceError(BadInputError):
    """A URI whose scheme no source serves, or that is malformed."""


class SourceError(ColdstartError):
    """The source refused, lied or is not there; `uri` and `file` say where."""

    outcome = "source_error"

    def __init__(self, uri: str, message: str, *, file: str | None = None) -> None:
        super().__init__(f"{uri}{'' if file is None else f' file {file}'}: {message}")
        self.uri = uri
        self.file = file


class TransientSourceError(SourceError):
    """Worth another try: a 503, a cut connection, a short body."""

    outcome = "source_unavailable"

    def __init__(
        self,
        uri: str,
        message: str,
        *,
        file: str | None = None,
        refused: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(uri, message, file=file)
        self.refused = refused
        self.retry_after_s = retry_after_s


class SourceChangedError(SourceError):
    """A file was replaced while it was read: its parts may not be mixed."""

    outcome = "source_changed"

    def __init__(self, uri: str, file: str, expected: str, found: str) -> None:
        super().__init__(uri, f"replaced while it was read ({expected} became {found}); start again", file=file)


class WholeFileOnlyError(SourceError):
    """The source does not serve ranges of this file: it can only be read from its beginning."""


class ContentMismatchError(ColdstartError):
    """Bytes arrived that are not those the source's manifest describes."""

    outcome = "corrupt"

    def __init__(self, file: str, what: str, expected: str, found: str) -> None:
        super().__init__(
            f"{file}: {what} is {found}, {expected} was expected: the source, the wire or the disk is corrupt"
        )
        self.file = file


class CacheError(ColdstartError):
    """The cache directory cannot be used as asked."""

    outcome = "cache_error"


class CacheReadOnlyError(CacheError):
    """The cache cannot be written."""

    outcome = "cache_read_only"


class DiskFullError(CacheError):
    """No space left while writing; what was written of this transfer is gone again."""

    outcome = "disk_full"


class DeviceMemoryError(ColdstartError):
    """The device or the host has no memory for the load; what was taken is given back."""

    outcome = "no_memory"


class NotCachedError(ColdstartError):
    """No such snapshot in the cache."""


class CancelledError(ColdstartError):
    """The transfer was told to stop; what it has is kept for the next try."""

    outcome = "cancelled"


def cache_error(error: OSError, path: Path) -> CacheError:
    """A file-system error of the cache in our words, by its errno."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFullError(f"{path}: {reason} while writing; the partial transfer was removed, free some space")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return CacheReadOnlyError(f"{path}: {reason}: the cache must be writable to stage into it")
    if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
        return CacheError(f"{path}: {reason}: file locks are needed; put the cache on a local file system")
    return CacheError(f"{path}: {reason}")
