"""The embedded queue: runs are made in this service, one at a time, each in a process of its own."""

import asyncio
import contextlib
import logging

from tonnage_bench.making import Worker
from tonnage_bench.ports import Ref

logger = logging.getLogger("tonnage.bench")


class InProcessQueue:
    """Offers runs to one worker; what is offered twice waits once."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._offered: asyncio.Queue[Ref] = asyncio.Queue()
        self._known: set[Ref] = set()
        self._task: asyncio.Task[None] | None = None

    async def put(self, ref: Ref) -> None:
        """Offer a run."""
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        if ref not in self._known:
            self._known.add(ref)
            self._offered.put_nowait(ref)

    async def close(self) -> None:
        """End the run that is being made; it is made anew after the next start."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _work(self) -> None:
        while True:
            ref = await self._offered.get()
            try:
                await self._worker.make(ref)
            except Exception:
                logger.exception("a run was lost: its lease ends and it is made again", extra={"run": str(ref)})
            finally:
                self._known.discard(ref)
