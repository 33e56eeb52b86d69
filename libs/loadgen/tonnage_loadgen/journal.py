"""The journal of a series of runs: one JSON line a run, written whole before the next begins.

A series that was killed goes on from its journal: runs in it are not made again, and the one under way when it died,
whose line is missing or cut short, is. The first line names the series, so that another's journal is not continued.
"""

import os
from pathlib import Path
from typing import Any

import orjson

from tonnage_core.errors import BadInputError
from tonnage_loadgen.errors import ReportError
from tonnage_loadgen.sweep import Step


class Journal:
    """The file `path` of the series that `settings` describes. Raises `BadInputError` when it is of another one."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._path = path
        self._head = orjson.dumps({"series": settings}, option=orjson.OPT_SORT_KEYS)
        self.steps: list[Step] = []
        lines = self._lines()
        if lines and lines[0] != self._head:
            raise BadInputError(f"{path} is the journal of another series: give a new file, or the same options")
        self.steps += [_step(line, path) for line in lines[1:]]
        self._write(b"\n".join([self._head, *lines[1:]]) + b"\n", "wb")

    def add(self, step: Step) -> None:
        """Keep a run that has ended; it is on the disk when this returns."""
        self._write(orjson.dumps(step) + b"\n", "ab")
        self.steps.append(step)

    def _lines(self) -> list[bytes]:
        """Whole lines: what follows the last line end was cut short."""
        try:
            data = self._path.read_bytes() if self._path.exists() else b""
        except OSError as error:
            raise BadInputError(f"{self._path}: cannot be read: {error.strerror}") from error
        return data.split(b"\n")[:-1]

    def _write(self, data: bytes, mode: str) -> None:
        """Append, or put a whole new file in the place of the old one."""
        place = self._path if mode == "ab" else self._path.with_name(self._path.name + ".new")
        try:
            with place.open(mode) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if place != self._path:
                place.replace(self._path)
        except OSError as error:
            raise ReportError(f"{self._path}: cannot be written: {error.strerror}") from error


def _step(line: bytes, path: Path) -> Step:
    try:
        found = orjson.loads(line)
        return Step(found["rate"], found["met"], found["reason"], found["document"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise BadInputError(f"{path}: a line is no run of a series: {error}") from error
