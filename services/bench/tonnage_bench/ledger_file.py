"""The database's file before it is opened: a new one appears whole or not at all, so an empty one has lost its jobs.

SQLite takes a file of 0 bytes for a new database and deletes the log beside it. It is therefore asked only about files
that hold something, and a first start that is killed leaves nothing under the final name.
"""

import contextlib
import os
import sqlite3
import tempfile
from pathlib import Path

from tonnage_bench.errors import LedgerFileError
from tonnage_bench.migrations import migrate


def settle(path: Path) -> None:
    """Make the database where there is none. Raises `LedgerFileError` for one that was emptied or taken away."""
    log = path.with_name(f"{path.name}-wal")
    try:
        if path.exists():
            if path.is_file() and path.stat().st_size == 0:
                raise LedgerFileError(
                    f"{path} is empty: the jobs it held are gone. Put a copy back; remove the file to start with none"
                )
            return
        if log.exists() and log.stat().st_size:
            raise LedgerFileError(
                f"{path} is gone and {log.name} beside it holds changes: put it back; remove both to start with none"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        _make(path)
    except (OSError, sqlite3.Error) as error:
        raise LedgerFileError(f"{path}: cannot be made: {error}; name another in TONNAGE_BENCH_DATABASE") from error


def _make(path: Path) -> None:
    """A database without jobs, synced, under its name at once; one that another process made meanwhile stays."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
        fresh = Path(folder) / path.name
        with contextlib.closing(sqlite3.connect(fresh, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            migrate(connection, str(path))
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    folder_fd = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)
