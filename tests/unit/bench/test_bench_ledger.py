"""The bench's database: full, read-only, cut, foreign, old; what it refuses and what it keeps."""

import sqlite3
from pathlib import Path

import pytest

from tonnage_bench.errors import LedgerError, LedgerFileError
from tonnage_bench.ledger import Ledger
from tonnage_bench.migrations import SCRIPTS, migrate
from tonnage_core.benchmarking.series import Ask


def filled(path: Path) -> Ledger:
    ledger = Ledger(path)
    ledger.submit("a", {"url": "http://127.0.0.1:9"}, "127.0.0.1:9", 0)
    ledger.begin("a")
    ledger.add_step("a", Ask(0, "rate", 1.0, None, 0, "sweep"))
    assert ledger.claim("a", 0, 1, "w", 10)
    return ledger


def test_a_full_disk_is_an_error_that_leaves_the_ledger_as_it_was(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "b.sqlite")
    pages = ledger.connection.execute("PRAGMA page_count").fetchone()[0]
    ledger.connection.execute(f"PRAGMA max_page_count = {pages}")
    big = {"document": {"x": "y" * 100_000}}
    with pytest.raises(LedgerError, match="full") as failed:
        ledger.finish("a", 0, 1, "w", True, big)
    assert failed.value.kind == "full"
    assert ledger.results("a") == []
    assert ledger.job("a").steps[0].state == "claimed"
    ledger.connection.execute("PRAGMA max_page_count = 100000")
    assert ledger.finish("a", 0, 1, "w", True, big)
    assert len(ledger.results("a")) == 1


def test_a_database_that_can_only_be_read_refuses_changes_and_still_answers(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "b.sqlite")
    ledger.connection.execute("PRAGMA query_only = 1")
    with pytest.raises(LedgerError) as failed:
        ledger.check()
    assert failed.value.kind == "read_only"
    assert ledger.job("a").state == "running"


def test_a_truncated_database_is_not_started_over(tmp_path: Path) -> None:
    path = tmp_path / "b.sqlite"
    ledger = filled(path)
    for number in range(200):
        ledger.submit(f"job{number}", {"url": "http://127.0.0.1:9", "pad": "x" * 500}, "t", 0)
    ledger.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size // 2)
    with pytest.raises(LedgerFileError, match="not written over"):
        Ledger(path)
    assert path.stat().st_size == size // 2


@pytest.mark.parametrize("with_log", [False, True])
def test_a_database_cut_to_nothing_between_starts_is_not_taken_for_a_new_one(tmp_path: Path, with_log: bool) -> None:
    path, log = tmp_path / "b.sqlite", tmp_path / "b.sqlite-wal"
    ledger = filled(path)
    kept = log.read_bytes()
    ledger.close()
    if with_log:
        log.write_bytes(kept)
    path.write_bytes(b"")
    with pytest.raises(LedgerFileError, match="is empty: the jobs it held are gone"):
        Ledger(path)
    assert path.stat().st_size == 0
    assert log.exists() == with_log


def test_a_database_that_is_gone_from_beside_its_log_is_not_begun_anew(tmp_path: Path) -> None:
    path, log = tmp_path / "b.sqlite", tmp_path / "b.sqlite-wal"
    ledger = filled(path)
    kept = log.read_bytes()
    ledger.close()
    log.write_bytes(kept)
    path.unlink()
    with pytest.raises(LedgerFileError, match=r"is gone and b\.sqlite-wal"):
        Ledger(path)
    assert log.read_bytes() == kept


def test_a_first_start_that_fails_leaves_no_file_that_a_second_would_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "b.sqlite"
    scripts = (*SCRIPTS, "CREATE TABLE jobs (again)")
    with monkeypatch.context() as changed:
        changed.setattr("tonnage_bench.migrations.SCRIPTS", scripts)
        with pytest.raises(LedgerFileError, match="cannot be made"):
            Ledger(path)
    assert list(path.parent.iterdir()) == []
    Ledger(path).close()
    assert Ledger(path).jobs() == []


def test_a_database_that_another_process_made_meanwhile_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "b.sqlite"
    made: list[str] = []

    def other(connection: sqlite3.Connection, name: str) -> int:
        if not made:
            made.append(name)
            filled(path).close()
        return migrate(connection, name)

    monkeypatch.setattr("tonnage_bench.ledger_file.migrate", other)
    ledger = Ledger(path)
    assert ledger.job("a").state == "running"
    ledger.close()


def test_a_database_cut_or_taken_away_while_in_use_is_noticed_before_anything_is_begun(tmp_path: Path) -> None:
    path = tmp_path / "b.sqlite"
    Ledger(path).close()
    ledger = Ledger(path)
    ledger.check()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 4096)
    with pytest.raises(LedgerError, match="was cut"):
        ledger.check()
    path.unlink()
    with pytest.raises(LedgerError, match="is gone"):
        ledger.check()


def test_what_is_no_database_of_ours_is_refused(tmp_path: Path) -> None:
    text, foreign, newer = tmp_path / "a.txt", tmp_path / "f.sqlite", tmp_path / "n.sqlite"
    text.write_text("not a database, but long enough to have a header of its own" * 20)
    with pytest.raises(LedgerFileError, match="not written over"):
        Ledger(text)
    with sqlite3.connect(foreign) as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    with pytest.raises(LedgerFileError, match="something else"):
        Ledger(foreign)
    Ledger(newer).close()
    with sqlite3.connect(newer) as other:
        other.execute(f"PRAGMA user_version = {len(SCRIPTS) + 1}")
    other.close()
    with pytest.raises(LedgerFileError, match="newer version"):
        Ledger(newer)


def test_a_database_of_an_older_version_is_brought_up_and_keeps_its_jobs(tmp_path: Path) -> None:
    path = tmp_path / "b.sqlite"
    old = sqlite3.connect(path)
    old.executescript(SCRIPTS[0] + "PRAGMA user_version = 1;")
    old.execute(
        "INSERT INTO jobs (id, created_s, state, target, request) VALUES ('a', 1, 'done', 't', '{}')",
    )
    old.commit()
    old.close()
    ledger = Ledger(path)
    assert (ledger.job("a").state, ledger.job("a").points) == ("done", "none")
    ledger.close()
    again = Ledger(path)
    assert again.job("a").created_s == 1
    again.close()


def test_ended_jobs_over_the_limit_leave_with_their_runs(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "b.sqlite")
    for number in range(5):
        ledger.submit(str(number), {}, "t", 0)
        ledger.begin(str(number))
        ledger.add_step(str(number), Ask(0, "rate", 1.0, None, 0, "sweep"))
        ledger.end(str(number), "done", 1)
    ledger.submit("open", {}, "t", 0)
    ledger.forget(2)
    assert [job.id for job in ledger.jobs()] == ["3", "4", "open"]
    assert ledger.connection.execute("SELECT count(*) FROM steps").fetchone()[0] == 2
    ledger.close()
