"""The database's shape, one script a version; `user_version` says which were applied."""

import sqlite3

from tonnage_bench.errors import LedgerFileError

SCRIPTS = (
    """
    CREATE TABLE jobs (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        created_s REAL NOT NULL,
        ended_s REAL,
        state TEXT NOT NULL,
        target TEXT NOT NULL,
        request TEXT NOT NULL,
        error TEXT,
        cancel INTEGER NOT NULL DEFAULT 0
    );
    CREATE TABLE steps (
        job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        state TEXT NOT NULL,
        ask TEXT NOT NULL,
        sent_s REAL,
        lease_until_s REAL,
        worker TEXT,
        elapsed_s REAL,
        met INTEGER,
        result TEXT,
        PRIMARY KEY (job, number)
    ) WITHOUT ROWID;
    """,
    """
    ALTER TABLE jobs ADD COLUMN points TEXT NOT NULL DEFAULT 'none';
    CREATE INDEX jobs_by_state ON jobs (state);
    """,
)


def migrate(connection: sqlite3.Connection, name: str) -> int:
    """Bring the database to this version in one transaction each; returns the scripts applied.

    Raises `LedgerFileError` for one that a newer version wrote.
    """
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if found > len(SCRIPTS):
        raise LedgerFileError(
            f"{name} was written by a newer version (schema {found}, known {len(SCRIPTS)}): upgrade or use another file"
        )
    if found == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise LedgerFileError(f"{name} is a database of something else: name another file")
    for version, script in enumerate(SCRIPTS[found:], found + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in filter(str.strip, script.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version}")
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    return len(SCRIPTS) - found
