"""Weights to a GPU: `tonnage_coldstart.load` beside a plain pinned ring, safetensors and fastsafetensors.

A worker does one task at a time under a time limit; the result is written after every task, so that a variant that
hangs, or the end of the machine's time, costs one measurement. First a scan of rings, then rounds in which
each method runs once, in a new order each time. Needs torch, numpy, safetensors and crc32c alone.
"""

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

GIB = 1 << 30
HERE = Path(__file__).resolve().parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=16.0, help="checkpoint size")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--shapes",
        nargs="+",
        default=["8_4_8", "12_8_4", "16_4_8", "16_8_2", "16_8_4"],
        help="rings to try: readers, MiB of a slab, spare slabs",
    )
    parser.add_argument("--cold-shapes", nargs="+", default=["8_8_4", "16_8_4"], help="rings of the cold part")
    parser.add_argument("--scans", type=int, default=2, help="rounds of the scan that chooses the rings")
    parser.add_argument("--folder", type=Path, help="where the checkpoint lies or is made; a temporary one by default")
    parser.add_argument("--fallback", type=Path, help="made here (a tmpfs) when making it in --folder takes too long")
    parser.add_argument("--cold-gib", type=float, default=4.0, help="size of the checkpoint of the cold part; 0: none")
    parser.add_argument("--limit-s", type=float, default=540.0, help="of the whole run")
    parser.add_argument("--task-limit-s", type=float, default=60.0, help="of one task")
    parser.add_argument("--make-limit-s", type=float, default=150.0, help="of making a checkpoint")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


class Worker:
    """The process that measures; started again after a task that had to be killed."""

    def __init__(self, given: argparse.Namespace, started: float) -> None:
        self._given, self._started = given, started
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self.context: dict[str, Any] = {}

    def run(self, task: dict[str, Any], limit_s: float) -> list[dict[str, Any]]:
        """The task's events; one `timed_out` when it outlasts `limit_s` or the whole run's end."""
        limit_s = min(limit_s, self.left_s())
        if limit_s <= 0:
            return [{"event": "no_time", **task}]
        process = self._process or self._start()
        self.say(f"{task['task']} {task.get('variant', '')}")
        assert process.stdin is not None
        process.stdin.write(json.dumps(task).encode() + b"\n")
        process.stdin.flush()
        events = list(self._events(process, time.monotonic() + limit_s))
        if not events or events[-1]["event"] != "done":
            self.close()
            return [*events, {"event": "timed_out", **task, "limit_s": limit_s}]
        return events[:-1]

    def left_s(self) -> float:
        """Seconds of the whole run that are left."""
        return float(self._given.limit_s) - (time.monotonic() - self._started)

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._started:7.1f} s] {text}", flush=True)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> "subprocess.Popen[bytes]":
        shapes = [*dict.fromkeys([*self._given.shapes, *self._given.cold_shapes])]
        given = {"device": self._given.device, "shapes": shapes}
        command = [sys.executable, str(HERE / "gpu_variants.py"), json.dumps(given)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._unread = b""
        ready = next(self._events(self._process, time.monotonic() + 120), None)
        if ready is None:
            raise SystemExit("the worker did not start in 120 s")
        self.context = {name: ready[name] for name in ("gpu", "torch", "python", "cores")}
        return self._process

    def _events(self, process: "subprocess.Popen[bytes]", until: float) -> Iterator[dict[str, Any]]:
        while (line := self._line(process, until)) is not None:
            event = json.loads(line)
            shown = {name: event[name] for name in ("gbps", "file", "why", "equal") if name in event}
            if shown:
                self.say(f"  {event['event']} {shown}")
            yield event
            if event["event"] in ("done", "ready"):
                return

    def _line(self, process: "subprocess.Popen[bytes]", until: float) -> bytes | None:
        """The next line, or None when it does not come in time or the worker died."""
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        while b"\n" not in self._unread:
            if not select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
                return None
            more = os.read(descriptor, 65536)
            if not more:
                return None
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line


class Record:
    """The document, on disk after every task."""

    def __init__(self, given: argparse.Namespace, worker: Worker) -> None:
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()}
        self._out, self._worker = given.out, worker
        self.document: dict[str, Any] = {"schema": "tonnage.bench_gpu_load/2", "version": 2, "settings": settings}
        self.measured: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self.problems: list[dict[str, Any]] = []

    def do(self, task: dict[str, Any], limit_s: float) -> dict[str, dict[str, Any]]:
        """Run a task and keep what it tells; the events by kind."""
        found = {}
        for event in self._worker.run(task, limit_s):
            found[event["event"]] = event
            if event["event"] == "measured":
                self.measured.setdefault(event["part"], {}).setdefault(event["variant"], []).append(event)
            elif event["event"] in ("timed_out", "failed", "skipped", "no_time"):
                self.problems.append(event)
        self.save()
        return found

    def save(self) -> None:
        parts = {
            part: {name: _figures(events) for name, events in by_name.items()}
            for part, by_name in self.measured.items()
        }
        self.document |= {"context": self._worker.context, "parts": parts, "problems": self.problems}
        if self._out:
            self._out.write_text(json.dumps(self.document, indent=1) + "\n")


def _figures(events: list[dict[str, Any]]) -> dict[str, Any]:
    rates = sorted(event["gbps"] for event in events)
    return {
        "gbps": statistics.median(rates),
        "gbps_min": rates[0],
        "gbps_max": rates[-1],
        "cpu_s": statistics.median(event["cpu_s"] for event in events),
        "seconds": [event["seconds"] for event in events],
    }


def checkpoint(record: Record, given: argparse.Namespace, folder: Path, gib: float, shards: int) -> Path | None:
    """Make it in `folder`, else in the fallback; None when neither got done in time."""
    task = {"task": "make", "total_bytes": int(gib * GIB), "shards": shards, "hidden": given.hidden}
    for place in (folder, given.fallback):
        if place is not None:
            made = record.do({**task, "folder": str(place)}, given.make_limit_s).get("made")
            if made is not None:
                record.document.setdefault("checkpoints", {})[str(place)] = made["bytes"]
                return Path(place)
    return None


def rounds(record: Record, given: argparse.Namespace, folder: Path, part: str, names: list[str], count: int) -> None:
    """Each variant once a round; what failed or hung once is left out of the next rounds."""
    for number in range(count):
        order = sorted(names)
        Random(number).shuffle(order)
        for name in order:
            if any(one.get("variant") == name for one in record.problems):
                continue
            task = {"task": "time", "variant": name, "part": part, "folder": str(folder), "cold": part == "cold"}
            record.do({**task, "warmups": 0 if part == "cold" or number else 1}, given.task_limit_s)


def best(record: Record, part: str, kind: str) -> str | None:
    """The variant of a kind that was fastest in a part."""
    found = {name: one for name, one in record.measured.get(part, {}).items() if name.startswith(kind)}
    return max(found, key=lambda name: _figures(found[name])["gbps"]) if found else None


def plain_shapes(shapes: list[str]) -> list[str]:
    """The rings without their spare slabs, each once."""
    return [*dict.fromkeys(shape.rpartition("_")[0] for shape in shapes)]


def warm(record: Record, given: argparse.Namespace, folder: Path) -> None:
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    h2d = record.do({"task": "h2d", "bytes": size}, given.task_limit_s).get("h2d", {})
    record.document |= {"bytes": size, "h2d_pinned_gbps": h2d.get("gbps")}
    record.do({"task": "warm", "folder": str(folder)}, given.make_limit_s)
    first = record.do({"task": "first", "folder": str(folder)}, given.task_limit_s).get("first_load", {})
    equal = record.do({"task": "equal", "folder": str(folder)}, given.task_limit_s).get("byte_equal", {})
    record.document |= {"first_load": first, "byte_equal": equal.get("equal")}
    record.document["damage_found"] = equal.get("damage_found")
    ours, beside = ("tonnage_verified", "tonnage_unchecked", "tonnage_hostchecked"), ("plain_ring", "pread_alone")
    scanned = [f"{kind}_{shape}" for kind in ours for shape in given.shapes]
    scanned += [f"{kind}_{plain}" for kind in beside for plain in plain_shapes(given.shapes)]
    rounds(record, given, folder, "scan", scanned, given.scans)
    chosen = [name for kind in (*ours, *beside) if (name := best(record, "scan", kind)) is not None]
    rounds(record, given, folder, "warm", [*chosen, "safetensors", "fastsafetensors"], given.rounds)


def cold(record: Record, given: argparse.Namespace, folder: Path) -> None:
    shapes = given.cold_shapes
    names = [f"{kind}_{plain}" for kind in ("pread_alone", "disk_direct") for plain in plain_shapes(shapes)]
    names += [f"tonnage_{kind}_{shape}" for kind in ("verified", "direct", "dropped") for shape in shapes]
    rounds(record, given, folder, "cold", [*names, "safetensors"], max(2, given.rounds // 2))


def ratios(record: Record) -> dict[str, float | None]:
    """The figures that count, each within its own part of the run."""

    def rate(part: str, kind: str) -> float | None:
        found = [_figures(events)["gbps"] for name, events in record.measured.get(part, {}).items() if kind in name]
        return max(found) if found else None

    def share(one: float | None, other: float | None) -> float | None:
        return None if one is None or other is None else one / other

    disk = [one for one in (rate("cold", "pread_alone"), rate("cold", "disk_direct")) if one is not None]
    ours = [rate("cold", f"tonnage_{kind}") for kind in ("verified", "direct")]
    return {
        "warm_verified_to_pread_alone": share(rate("warm", "tonnage_verified"), rate("warm", "pread_alone")),
        "warm_unchecked_to_pread_alone": share(rate("warm", "tonnage_unchecked"), rate("warm", "pread_alone")),
        "warm_verified_to_plain_ring": share(rate("warm", "tonnage_verified"), rate("warm", "plain_ring")),
        "warm_verified_to_safetensors": share(rate("warm", "tonnage_verified"), rate("warm", "safetensors")),
        "cold_verified_to_disk": share(max((one for one in ours if one), default=None), max(disk, default=None)),
    }


def run(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    started = time.monotonic()
    worker = Worker(given, started)
    record = Record(given, worker)
    try:
        made = checkpoint(record, given, folder / "warm", given.gib, given.shards)
        if made is not None:
            warm(record, given, made)
        if given.cold_gib > 0:
            small = checkpoint(record, argparse.Namespace(**{**vars(given), "fallback": None}), folder / "cold",
                               given.cold_gib, 2)  # fmt: skip
            if small is not None:
                cold(record, given, small)
    finally:
        worker.close()
        record.document |= {"ratios": ratios(record), "seconds": time.monotonic() - started}
        record.save()
    return record.document


def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory() as made:
        document = run(given, given.folder or Path(made))
    for part, by_name in document["parts"].items():
        for name, one in sorted(by_name.items(), key=lambda item: -item[1]["gbps"]):
            print(f"{part:5} {name:28} {one['gbps']:7.2f} GB/s  ({one['gbps_min']:.2f}-{one['gbps_max']:.2f})")
    print(f"pinned H2D alone {document.get('h2d_pinned_gbps')}, byte-equal {document.get('byte_equal')}")
    print(json.dumps(document["ratios"]))


if __name__ == "__main__":
    main()
