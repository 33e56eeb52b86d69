"""What was measured elsewhere and sent here: GpuProfiles and bench points, bounded, in the shared store."""

import asyncio
import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tonnage_core.errors import BadInputError, TonnageError
from tonnage_core.hardware.profile import gpu_from_profile
from tonnage_runtime.store import Store

PROFILE_BYTES = 256 << 10
"""Largest GpuProfile taken."""
_ATTEMPTS = 16
_PROFILES, _POINTS = "tonnage/planner/profiles", "tonnage/planner/bench_points"
NEEDED = ("id", "metric", "value")
"""Columns that every bench point has."""
ROW_BYTES = 8192
MOST_COLUMNS = 256
"""Of one file, and of all points kept: each row holds its columns' names, and the table of all has a cell for each."""
GPUS_OF_A_NODE = 4096
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


class ContendedError(TonnageError):
    """Other replicas changed the same entry all the time; the request may be sent again."""


class UnknownProfileError(TonnageError):
    """No such profile: answered with 404."""


class Library:
    """Profiles by `node/index`, and bench points in order of arrival; the oldest leave when there are too many."""

    def __init__(self, store: Store, *, profiles: int, points: int) -> None:
        self._store = store
        self._most_profiles = profiles
        self._most_points = points

    async def add_profile(self, document: Mapping[str, Any]) -> str:
        """Keep a GpuProfile, the latest of its GPU; returns its reference. Raises `BadInputError` for anything else."""
        if document.get("schema") != "tonnage.gpu_profile/1":
            raise BadInputError(
                "schema is not tonnage.gpu_profile/1: send a document as `tonnage probe --json` writes it"
            )
        reference = _reference(document)
        gpu_from_profile(document)
        if _size(document) > PROFILE_BYTES:
            raise BadInputError(f"the GpuProfile is over {PROFILE_BYTES >> 10} KiB: leave raw samples out")

        def put(held: dict[str, Any]) -> dict[str, Any]:
            held.pop(reference, None)
            held[reference] = dict(document)
            return dict(list(held.items())[-self._most_profiles :])

        await self._change(_PROFILES, put)
        return reference

    async def profiles(self) -> dict[str, dict[str, Any]]:
        """Every profile by reference, the latest last."""
        held = await self._store.get(_PROFILES)
        return json.loads(held) if held else {}

    async def profile(self, reference: str) -> dict[str, Any]:
        """One profile; raises `UnknownProfileError`."""
        held = await self.profiles()
        if reference not in held:
            raise UnknownProfileError(f"no GpuProfile {reference[:300]!r}; known: {', '.join(held) or 'none yet'}")
        return held[reference]

    async def add_points(self, text: str) -> tuple[int, int]:
        """Add the rows of a CSV; returns (added, held). Unknown columns are kept, `notes` is not read.

        A row whose id is held replaces it. Raises `BadInputError` and adds nothing when a row is wrong.
        """
        rows = await asyncio.to_thread(read_points, text)

        def put(known: dict[str, Any]) -> dict[str, Any]:
            kept = _newest(known | rows, self._most_points)
            if len({column for row in kept.values() for column in row}) > MOST_COLUMNS:
                raise BadInputError(
                    f"bench points: with those kept they would have more than {MOST_COLUMNS} columns; leave out those "
                    "that no other point has"
                )
            return kept

        held = await self._change(_POINTS, put)
        return len(rows), len(held)

    async def held(self) -> dict[str, dict[str, str]]:
        """Every bench point by id."""
        found = await self._store.get(_POINTS)
        return await asyncio.to_thread(json.loads, found) if found else {}

    async def points(self) -> str:
        """Every bench point as CSV, the columns of all rows."""
        return await asyncio.to_thread(_table, list((await self.held()).values()))

    async def _change(self, key: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        for _ in range(_ATTEMPTS):
            before = await self._store.get(key)
            after, kept = await asyncio.to_thread(_changed, change, before)  # megabytes take seconds: not on the loop
            if await self._store.compare_and_set(key, before, kept):
                return after
        raise ContendedError(f"{key} is changed by others all the time: send it again")


def _changed(change: Callable[[dict[str, Any]], dict[str, Any]], before: bytes | None) -> tuple[dict[str, Any], bytes]:
    after = change(json.loads(before) if before else {})
    return after, json.dumps(after).encode()


def _table(rows: list[dict[str, str]]) -> str:
    columns = list(dict.fromkeys([*NEEDED, *(column for row in rows for column in row)]))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _reference(document: Mapping[str, Any]) -> str:
    """`node/index`, which is also the path the profile is read back under."""
    node, index = document.get("node"), document.get("index")
    named = isinstance(node, str) and _NODE.fullmatch(node) is not None
    if not named or isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < GPUS_OF_A_NODE:
        raise BadInputError(
            "a GpuProfile has a node, a name of letters, digits, dots, - and _, and an index, a whole number from 0 to "
            f"{GPUS_OF_A_NODE - 1}"
        )
    return f"{node}/{index}"


def _size(document: Mapping[str, Any]) -> int:
    """Bytes of the document as the API answers it; one that cannot be answered would break every listing."""
    try:
        return len(json.dumps(document, ensure_ascii=False, allow_nan=False).encode())
    except ValueError as error:
        raise BadInputError(
            "the GpuProfile holds NaN, an infinity or text that is not Unicode: leave out what was not measured"
        ) from error


def _newest(rows: dict[str, Any], most: int) -> dict[str, Any]:
    return dict(list(rows.items())[-most:])


def read_points(text: str) -> dict[str, dict[str, str]]:
    """Bench points by id. Raises `BadInputError` with the line's number."""
    reader = csv.DictReader(io.StringIO(text))
    try:
        columns = reader.fieldnames or []
        missing = [name for name in NEEDED if name not in columns]
        if missing:
            raise BadInputError(
                f"bench points: the header lacks {', '.join(missing)}; the columns are those of `bench`"
            )
        twice = next((name for name in columns if columns.count(name) > 1), None)
        if twice is not None:
            raise BadInputError(f"bench points: the header names {twice[:40]!r} twice; keep one column")
        if len(columns) > MOST_COLUMNS or sum(map(len, columns)) > ROW_BYTES:
            raise BadInputError(
                f"bench points: the header has over {MOST_COLUMNS} columns or {ROW_BYTES >> 10} KiB; leave out columns"
            )
        found: dict[str, dict[str, str]] = {}
        for row in reader:
            found[_identity(row, reader.line_num)] = {str(column): value or "" for column, value in row.items()}
    except csv.Error as error:
        raise BadInputError(f"bench points: not CSV: {error}") from error
    if not found:
        raise BadInputError("bench points: a header and no row")
    return found


def _identity(row: Mapping[Any, Any], number: int) -> str:
    """The row's id, once its shape, metric and value are right."""
    if None in row or None in row.values():
        raise BadInputError(f"bench points: line {number} has another number of columns than the header")
    if sum(len(str(value)) for value in row.values()) > ROW_BYTES:
        raise BadInputError(f"bench points: line {number} is over {ROW_BYTES >> 10} KiB")
    for name in NEEDED:
        if not row[name]:
            raise BadInputError(f"bench points: line {number} has no {name}")
    if row["metric"] != "start_result":
        try:
            value = float(row["value"])
        except ValueError:
            value = float("nan")
        if not 0 <= value < 1e18:
            raise BadInputError(f"bench points: line {number}: value is {row['value'][:40]!r}; a number is expected")
    return str(row["id"])
