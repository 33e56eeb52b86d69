"""What the node cache keeps: a quota in bytes, least recently used out first, never what is pinned or in use."""

from collections.abc import Iterable
from dataclasses import dataclass

from tonnage_core.units import GIB


@dataclass(frozen=True, slots=True)
class Entry:
    """One snapshot in the cache; `last_used_s` in seconds since the epoch."""

    key: str
    size_bytes: int
    last_used_s: float
    pinned: bool = False
    in_use: bool = False


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a new snapshot may come in: what must leave first, or why it may not (None: it may)."""

    evict: tuple[str, ...]
    refused: str | None


def admit(
    needed_bytes: int,
    entries: Iterable[Entry],
    *,
    quota_bytes: int | None,
    reserved_bytes: int,
    free_bytes: int,
    keep_free_bytes: int,
    pending_bytes: int = 0,
    staged_bytes: int = 0,
) -> Admission:
    """Decide on `needed_bytes` more.

    `reserved_bytes` are promised to transfers under way, `pending_bytes` of them are not on the disk yet;
    `staged_bytes` of the need are. Without a quota only the disk limits: `keep_free_bytes` of it stay free.
    """
    kept = list(entries)
    used = sum(entry.size_bytes for entry in kept)
    over_quota = 0 if quota_bytes is None else used + reserved_bytes + needed_bytes - quota_bytes
    over_disk = needed_bytes - staged_bytes + pending_bytes + keep_free_bytes - free_bytes
    to_free = max(over_quota, over_disk, 0)
    leaving, freed = _least_recently_used(kept, to_free)
    if freed >= to_free:
        return Admission(leaving, None)
    held = [entry for entry in kept if entry.pinned or entry.in_use]
    limit = f"the quota of {_size(quota_bytes)}" if quota_bytes is not None and over_quota >= over_disk else "the disk"
    return Admission(
        (),
        f"{_size(needed_bytes)} do not fit: {limit} is short by {_size(to_free - freed)} even without all that may "
        f"leave; {len(held)} snapshots ({_size(sum(entry.size_bytes for entry in held))}) are pinned or in use and "
        f"{_size(reserved_bytes)} are promised to transfers under way. Raise the quota, unpin or delete a snapshot",
    )


def _least_recently_used(entries: Iterable[Entry], to_free: int) -> tuple[tuple[str, ...], int]:
    leaving: list[str] = []
    freed = 0
    movable = (entry for entry in entries if not (entry.pinned or entry.in_use))
    for entry in sorted(movable, key=lambda entry: (entry.last_used_s, entry.key)):
        if freed >= to_free:
            break
        leaving.append(entry.key)
        freed += entry.size_bytes
    return tuple(leaving), freed


def _size(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / GIB:.2f} GiB"
