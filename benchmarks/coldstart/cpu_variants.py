"""One method in one process: `cpu_variants.py METHOD SOURCE TARGET CONNECTIONS CHUNK_MIB`; prints one JSON line.

Imports are not timed; allocation, write and fsync are. `rss_beyond_mib` is the peak beyond what the process held before
and the tensors it returned.
"""

import http.client
import json
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

METHOD, SOURCE, TARGET, WIDTH, CHUNK = (*sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5]) << 20)


def stage() -> object:
    from tonnage_coldstart.cache.store import NodeCache
    from tonnage_coldstart.fetch.workers import FetchOptions
    from tonnage_coldstart.progress import Progress
    from tonnage_coldstart.sources.opening import SourceOptions, open_source
    from tonnage_coldstart.staging import Stager
    from tonnage_runtime.clock import SystemClock

    clock = SystemClock()
    cache = NodeCache(Path(TARGET), clock)
    cache.prepare()
    source = open_source(SOURCE, SourceOptions(connections=WIDTH))
    stager = Stager(cache, clock, FetchOptions(connections=WIDTH))
    return lambda: stager.stage(source, Progress(clock.monotonic), threading.Event())


def raw_copy() -> object:
    """Ranges in parallel into files, written and synced; nothing is checked."""
    names = sorted({*json.loads(_get("model.safetensors.index.json"))["weight_map"].values()})
    target = Path(TARGET)
    target.mkdir(parents=True)

    def run() -> None:
        sizes = [int(_head(name)) for name in names]
        files = [os.open(target / name, os.O_RDWR | os.O_CREAT) for name in names]
        chunks = ((n, start) for n, size in enumerate(sizes) for start in range(0, size, CHUNK))
        lock = threading.Lock()

        def work() -> None:
            connection, buffer = _connection(), memoryview(bytearray(CHUNK))
            while True:
                with lock:
                    number, start = next(chunks, (-1, 0))
                if number < 0:
                    return
                length = min(CHUNK, sizes[number] - start)
                _range(connection, names[number], start, buffer[:length])
                os.pwrite(files[number], buffer[:length], start)

        threads = [threading.Thread(target=work) for _ in range(WIDTH)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for file in files:
            os.fsync(file)
            os.close(file)

    return run


def load_ours() -> object:
    import tonnage_coldstart
    from tonnage_coldstart.loader.loading import LoadOptions, load_directory  # noqa: F401 - imports are not timed

    options = LoadOptions(threads=WIDTH)
    return lambda: tonnage_coldstart.load(SOURCE, "cpu", options)


def disk_alone() -> object:
    """Reads past the page cache into a few large pages, nothing copied or checked: the least time a load can take."""
    from baselines import plain_ring

    return lambda: plain_ring(Path(SOURCE), "cpu", WIDTH, copy=False, direct=True, slab_bytes=2 << 20)


def load_runai() -> object:
    from runai_model_streamer import SafetensorsStreamer

    kept = []

    def run() -> dict[str, Any]:
        streamer = SafetensorsStreamer()
        kept.append(streamer)
        streamer.__enter__()
        streamer.stream_files([str(path) for path in sorted(Path(SOURCE).glob("*.safetensors"))])
        return dict(streamer.get_tensors())

    return run


def load_safe_open() -> object:
    import torch  # noqa: F401 - imports are not timed
    from safetensors import safe_open

    def run() -> dict[str, Any]:
        found = {}
        for path in sorted(Path(SOURCE).glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                found |= {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a dict
        return found

    return run


def _connection() -> http.client.HTTPConnection:
    parts = urlsplit(SOURCE)
    return http.client.HTTPConnection(parts.hostname or "", parts.port)


def _path(name: str) -> str:
    return f"{urlsplit(SOURCE).path}/{name}"


def _get(name: str) -> bytes:
    connection = _connection()
    connection.request("GET", _path(name))
    return connection.getresponse().read()


def _head(name: str) -> str:
    connection = _connection()
    connection.request("HEAD", _path(name))
    return connection.getresponse().headers["Content-Length"]


def _range(connection: http.client.HTTPConnection, name: str, start: int, into: memoryview) -> None:
    connection.request("GET", _path(name), headers={"Range": f"bytes={start}-{start + len(into) - 1}"})
    response = connection.getresponse()
    done = 0
    while done < len(into):
        count = response.readinto(into[done:])
        if not count:
            raise OSError("short body")
        done += count
    response.read()


def main() -> None:
    methods = {one.__name__: one for one in (stage, raw_copy, disk_alone, load_ours, load_runai, load_safe_open)}
    run: Any = methods[METHOD]()
    before, rss = resource.getrusage(resource.RUSAGE_SELF), _rss_mib()
    started = time.perf_counter()
    held = run()
    taken = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    size = sum(tensor.nbytes for tensor in held.values()) if isinstance(held, dict) else 0
    figures = {
        "seconds": taken,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "rss_beyond_mib": after.ru_maxrss / 1024
        - max(rss, before.ru_maxrss / 1024 if not size else rss)
        - size / 2**20,
        "tensor_bytes": size,
        "verified": bool(getattr(held, "report", {}).get("verified")) if size else METHOD == "stage",
    }
    print(json.dumps(figures), flush=True)
    os._exit(0)


def _rss_mib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
