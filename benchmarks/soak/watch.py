"""What a process holds: memory, descriptors, threads; what a store holds; how many series a page has."""

import contextlib
import os
import statistics
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import redis

Sample = dict[str, float]


def process(pid: int) -> Sample:
    """MiB resident, open descriptors, threads of a process and of its children."""
    found: Sample = {"rss_mib": 0.0, "descriptors": 0.0, "threads": 0.0}
    for one in (pid, *_children(pid)):
        with contextlib.suppress(OSError):
            status = dict(
                line.split(":", 1) for line in Path(f"/proc/{one}/status").read_text().splitlines() if ":" in line
            )
            found["rss_mib"] += int(status["VmRSS"].split()[0]) / 1024
            found["threads"] += int(status["Threads"])
            found["descriptors"] += len(os.listdir(f"/proc/{one}/fd"))
    return found


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def series(url: str) -> float:
    """Lines with a value on a metrics page."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        return float(sum(1 for line in answer if line.strip() and not line.startswith(b"#")))


def store(port: int) -> Sample:
    """Keys, and entries of all streams."""
    client = redis.Redis(port=port)
    keys = list(client.scan_iter())
    entries = sum(client.xlen(key) for key in keys if client.type(key) == b"stream")
    client.close()
    return {"keys": float(len(keys)), "stream_entries": float(entries)}


class Watch:
    """Samples of several sources, and whether each figure stays where it is."""

    def __init__(self, sources: Mapping[str, Callable[[], Sample]]) -> None:
        self._sources = sources
        self._begun = time.monotonic()
        self.rows: list[tuple[float, dict[str, float]]] = []

    def look(self) -> None:
        """Take one sample of everything."""
        row = {f"{name} {key}": value for name, source in self._sources.items() for key, value in source().items()}
        self.rows.append((time.monotonic() - self._begun, row))

    def judged(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """For each figure the medians of the second quarter and of the last, and whether it grew by more than the
        settings let it: `grow_share` of the former and `grow_at_least` more, whichever is larger."""
        quarter = max(1, len(self.rows) // 4)
        found = {}
        for name in self.rows[-1][1]:
            values = [row[name] for _, row in self.rows]
            early, late = statistics.median(values[quarter : 2 * quarter]), statistics.median(values[-quarter:])
            kind = name.rsplit(" ", 1)[1]
            allowed = max(settings["grow_share"] * early, settings["grow_at_least"].get(kind, 0))
            found[name] = {
                "first": round(values[0], 1),
                "early": round(early, 1),
                "late": round(late, 1),
                "highest": round(max(values), 1),
                "flat": late - early <= allowed,
            }
        return found
