"""Several processes on one data port: each accepts for itself (SO_REUSEPORT), each has its own admin port."""

import os
import signal
import sys
from collections.abc import Callable, Collection

from tonnage_router.settings import RouterSettings
from tonnage_router.worker_channel import WorkerChannel, channels

Serve = Callable[[RouterSettings, WorkerChannel], int]


def worker_settings(settings: RouterSettings, number: int) -> RouterSettings:
    """Worker `number`'s settings: its own admin port and seed, and its share of the limits that count requests."""
    return settings.model_copy(
        update={
            "admin_port": settings.admin_port + number if settings.admin_port else 0,
            "seed": settings.seed + number,
            "endpoint_prefill_tokens": max(1, settings.endpoint_prefill_tokens // settings.limit_shares),
            "contended_prefill_tokens": max(1, settings.contended_prefill_tokens // settings.limit_shares),
            "endpoint_requests": max(1, settings.endpoint_requests // settings.limit_shares),
        }
    )


def run_workers(settings: RouterSettings, serve: Serve) -> int:
    """Fork the workers and wait for them. SIGTERM and SIGINT reach all; when one dies the rest are ended.

    Returns the first non-zero exit code, or 0.
    """
    ends = channels(settings.workers)
    children = [_fork(worker_settings(settings, number), ends[number], serve) for number in range(settings.workers)]

    def forward(number: int, _: object) -> None:
        _end(children, number)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)
    worst = 0
    left = set(children)
    while left:
        pid, status = os.wait()
        left.discard(pid)
        worst = worst or os.waitstatus_to_exitcode(status)
        _end(left, signal.SIGTERM)
    return abs(worst)


def _end(pids: Collection[int], number: int) -> None:
    for pid in list(pids):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _fork(settings: RouterSettings, channel: WorkerChannel, serve: Serve) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = serve(settings, channel)
    finally:
        os._exit(code)
