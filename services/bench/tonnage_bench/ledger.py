"""Jobs and their runs in one SQLite file: the only truth. Every change is one transaction, synced before it counts.

A change names the state it starts from, so that asking for it twice changes nothing the second time. Times are wall
seconds, given by the caller.
"""

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tonnage_bench.errors import LedgerError, LedgerFileError, UnknownJobError
from tonnage_bench.ledger_file import settle
from tonnage_bench.migrations import migrate
from tonnage_core.benchmarking.leases import StepView
from tonnage_core.benchmarking.series import Ask, Made

BUSY_MS = 3000
"""How long a change waits for another process's lock."""
_KINDS = {
    sqlite3.SQLITE_BUSY: "locked",
    sqlite3.SQLITE_LOCKED: "locked",
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_READONLY: "read_only",
    sqlite3.SQLITE_CORRUPT: "damaged",
    sqlite3.SQLITE_NOTADB: "damaged",
}
ACTIVE = ("queued", "running")


@dataclass(frozen=True, slots=True)
class Step:
    """One run as kept."""

    ask: Ask
    attempt: int
    state: str
    sent_s: float | None
    lease_until_s: float | None
    worker: str | None
    elapsed_s: float | None
    met: bool | None

    @property
    def made(self) -> Made:
        """For the rule of the series."""
        return Made(self.ask, self.met)

    @property
    def view(self) -> StepView:
        """For the rule of the leases."""
        return StepView(self.state == "claimed", self.attempt, self.sent_s, self.lease_until_s)


@dataclass(frozen=True, slots=True)
class Job:
    """One job as kept, with its runs in order."""

    id: str
    created_s: float
    ended_s: float | None
    state: str
    target: str
    request: dict[str, Any]
    error: str | None
    cancel: bool
    points: str
    steps: tuple[Step, ...]


class Ledger:
    """Opens or makes the file. Raises `LedgerFileError` when it is damaged or not ours, `LedgerError` when it cannot be
    used now. Safe to use from several threads.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._size = 0
        settle(path)
        try:
            self.connection = sqlite3.connect(
                path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise LedgerFileError(
                f"{path}: cannot be opened: {error}; name another in TONNAGE_BENCH_DATABASE"
            ) from error
        try:
            with self._translated():
                self._prepare()
        except BaseException as error:
            self.connection.close()
            if isinstance(error, LedgerError) and error.kind in ("damaged", "read_only"):
                raise LedgerFileError(f"{error}; move it away or name another: it is not written over") from error
            raise

    def _prepare(self) -> None:
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute("PRAGMA foreign_keys = ON")
        found = self.connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(f"damaged: {str(found).splitlines()[0]}")
        migrate(self.connection, str(self.path))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self.connection.close()

    def submit(self, job: str, request: dict[str, Any], target: str, now_s: float) -> None:
        """Keep a new job, queued."""
        with self._change() as db:
            db.execute(
                "INSERT INTO jobs (id, created_s, state, target, request) VALUES (?, ?, 'queued', ?, ?)",
                (job, now_s, target, json.dumps(request)),
            )

    def waiting(self) -> int:
        """Jobs that wait for their turn."""
        return int(self._read("SELECT count(*) FROM jobs WHERE state = 'queued'")[0][0])

    def count(self) -> dict[str, int]:
        """Jobs by state."""
        return {row[0]: int(row[1]) for row in self._read("SELECT state, count(*) FROM jobs GROUP BY state")}

    def jobs(self, states: tuple[str, ...] | None = None) -> list[Job]:
        """Jobs in order of arrival, all or those in `states`."""
        where = "" if states is None else f" WHERE state IN ({','.join('?' * len(states))})"
        rows = self._read(f"SELECT * FROM jobs{where} ORDER BY number", states or ())
        return [self._job(row) for row in rows]

    def unsent_points(self) -> list[str]:
        """Ended jobs whose bench points the planner has not taken yet, oldest first."""
        rows = self._read("SELECT id FROM jobs WHERE state = 'done' AND points = 'pending' ORDER BY number")
        return [str(row["id"]) for row in rows]

    def job(self, job: str) -> Job:
        """One job. Raises `UnknownJobError`."""
        rows = self._read("SELECT * FROM jobs WHERE id = ?", (job,))
        if not rows:
            raise UnknownJobError(f"no job {job[:64]!r}: it never was, or ended long ago")
        return self._job(rows[0])

    def results(self, job: str) -> list[tuple[Step, dict[str, Any]]]:
        """The runs that are done, with what each measured."""
        rows = self._read("SELECT * FROM steps WHERE job = ? AND state = 'done' ORDER BY number", (job,))
        return [(_step(row), json.loads(row["result"])) for row in rows]

    def begin(self, job: str) -> bool:
        """From queued to running."""
        with self._change() as db:
            sql = "UPDATE jobs SET state = 'running' WHERE id = ? AND state = 'queued' AND cancel = 0"
            return db.execute(sql, (job,)).rowcount == 1

    def ask_cancel(self, job: str) -> None:
        """Wish the job's end; one that ended stays as it is."""
        with self._change() as db:
            db.execute("UPDATE jobs SET cancel = 1 WHERE id = ? AND state IN ('queued', 'running')", (job,))

    def end(self, job: str, state: str, now_s: float, error: str | None = None, points: str = "none") -> bool:
        """End an active job; its open runs are cancelled. False when it had ended."""
        with self._change() as db:
            sql = """UPDATE jobs SET state = ?, ended_s = ?, error = ?, points = ?
                     WHERE id = ? AND state IN ('queued', 'running')"""
            if db.execute(sql, (state, now_s, error, points, job)).rowcount != 1:
                return False
            db.execute("UPDATE steps SET state = 'cancelled' WHERE job = ? AND state != 'done'", (job,))
            return True

    def hold(self, job: str, reason: str | None) -> None:
        """Say what holds a running job up, or that nothing does any more."""
        with self._change() as db:
            db.execute("UPDATE jobs SET error = ? WHERE id = ? AND state = 'running'", (reason, job))

    def points_sent(self, job: str, state: str) -> None:
        """What became of the job's bench points."""
        with self._change() as db:
            db.execute("UPDATE jobs SET points = ? WHERE id = ? AND points = 'pending'", (state, job))

    def add_step(self, job: str, ask: Ask) -> None:
        """Keep the next run, waiting; the same again changes nothing."""
        with self._change() as db:
            sql = "INSERT OR IGNORE INTO steps (job, number, attempt, state, ask) VALUES (?, ?, 1, 'waiting', ?)"
            db.execute(sql, (job, ask.number, json.dumps(_ask_fields(ask))))

    def sent(self, job: str, number: int, attempt: int, now_s: float) -> None:
        """The run was put on the queue."""
        with self._change() as db:
            sql = "UPDATE steps SET sent_s = ? WHERE job = ? AND number = ? AND attempt = ? AND state = 'waiting'"
            db.execute(sql, (now_s, job, number, attempt))

    def next_attempt(self, job: str, number: int, attempt: int) -> bool:
        """Take the run from a worker that is gone; False when it was not claimed in this attempt."""
        with self._change() as db:
            sql = """UPDATE steps SET state = 'waiting', attempt = attempt + 1, sent_s = NULL, lease_until_s = NULL,
                     worker = NULL, elapsed_s = NULL
                     WHERE job = ? AND number = ? AND attempt = ? AND state = 'claimed'"""
            return db.execute(sql, (job, number, attempt)).rowcount == 1

    def claim(self, job: str, number: int, attempt: int, worker: str, until_s: float) -> bool:
        """Give the run to `worker`; False when it is claimed, done or cancelled, or another attempt is due."""
        with self._change() as db:
            sql = """UPDATE steps SET state = 'claimed', worker = ?, lease_until_s = ?, elapsed_s = 0
                     WHERE job = ? AND number = ? AND attempt = ? AND state = 'waiting'
                     AND EXISTS (SELECT 1 FROM jobs WHERE id = job AND state = 'running' AND cancel = 0)"""
            return db.execute(sql, (worker, until_s, job, number, attempt)).rowcount == 1

    def beat(self, job: str, number: int, attempt: int, worker: str, until_s: float, elapsed_s: float) -> bool:
        """Lengthen the worker's lease; False when the run is not its own any more or the job is to stop."""
        with self._change() as db:
            sql = """UPDATE steps SET lease_until_s = ?, elapsed_s = ?
                     WHERE job = ? AND number = ? AND attempt = ? AND worker = ? AND state = 'claimed'
                     AND EXISTS (SELECT 1 FROM jobs WHERE id = job AND state = 'running' AND cancel = 0)"""
            return db.execute(sql, (until_s, elapsed_s, job, number, attempt, worker)).rowcount == 1

    def finish(
        self, job: str, number: int, attempt: int, worker: str, met: bool | None, result: dict[str, Any]
    ) -> bool:
        """Keep the result of the current attempt, once. True also when this very result is kept already."""
        with self._change() as db:
            sql = """UPDATE steps SET state = 'done', met = ?, result = ?, lease_until_s = NULL
                     WHERE job = ? AND number = ? AND attempt = ? AND worker = ? AND state = 'claimed'"""
            if db.execute(sql, (met, json.dumps(result), job, number, attempt, worker)).rowcount == 1:
                return True
            sql = """SELECT count(*) FROM steps WHERE job = ? AND number = ? AND attempt = ? AND worker = ?
                     AND state = 'done'"""
            return bool(db.execute(sql, (job, number, attempt, worker)).fetchone()[0])

    def extend_leases(self, until_s: float) -> None:
        """After a start: workers could not be heard, so each claim gets a new lease."""
        with self._change() as db:
            db.execute("UPDATE steps SET lease_until_s = ? WHERE state = 'claimed'", (until_s,))

    def forget(self, keep: int) -> None:
        """Delete ended jobs but the last `keep`."""
        with self._change() as db:
            sql = """DELETE FROM jobs WHERE state NOT IN ('queued', 'running') AND points != 'pending'
                     AND number NOT IN (SELECT number FROM jobs WHERE state NOT IN ('queued', 'running')
                                        ORDER BY number DESC LIMIT ?)"""
            db.execute(sql, (keep,))

    def check(self) -> None:
        """Raises `LedgerError` when the file is gone, was cut or cannot be written."""
        try:
            size = self.path.stat().st_size
        except OSError as error:
            raise LedgerError(f"the database {self.path} is gone: put it back and restart", "damaged") from error
        if size < self._size:
            raise LedgerError(f"the database {self.path} was cut to {size} bytes: put a copy back, restart", "damaged")
        self._size = size
        with self._change() as db:
            db.execute("UPDATE jobs SET state = state WHERE 0")

    def _job(self, row: sqlite3.Row) -> Job:
        steps = self._read("SELECT * FROM steps WHERE job = ? ORDER BY number", (row["id"],))
        return Job(
            id=row["id"],
            created_s=row["created_s"],
            ended_s=row["ended_s"],
            state=row["state"],
            target=row["target"],
            request=json.loads(row["request"]),
            error=row["error"],
            cancel=bool(row["cancel"]),
            points=row["points"],
            steps=tuple(map(_step, steps)),
        )

    def _read(self, sql: str, values: tuple[Any, ...] = ()) -> list[sqlite3.Row]:
        with self._translated(), self._lock:
            cursor = self.connection.cursor()
            cursor.row_factory = sqlite3.Row
            return cursor.execute(sql, values).fetchall()

    @contextlib.contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """One transaction; undone whole when anything fails."""
        with self._translated(), self._lock:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            kind = _kind(error)
            raise LedgerError(f"the database {self.path} is unusable ({kind}): {error}", kind) from error


def _kind(error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return "damaged" if "damaged" in str(error) else "other"
    return _KINDS.get(code & 0xFF, "other")


def _ask_fields(ask: Ask) -> dict[str, Any]:
    return {name: getattr(ask, name) for name in Ask.__dataclass_fields__}


def _step(row: sqlite3.Row) -> Step:
    return Step(
        ask=Ask(**json.loads(row["ask"])),
        attempt=row["attempt"],
        state=row["state"],
        sent_s=row["sent_s"],
        lease_until_s=row["lease_until_s"],
        worker=row["worker"],
        elapsed_s=row["elapsed_s"],
        met=None if row["met"] is None else bool(row["met"]),
    )
