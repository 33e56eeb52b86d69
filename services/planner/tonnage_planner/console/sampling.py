"""A task that calls something at a steady pace until it is left, and outlives its failures."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

EVERY_S = 2.0
log = logging.getLogger("tonnage.planner")


@contextlib.asynccontextmanager
async def sampling(take: Callable[[], Awaitable[None]], every_s: float = EVERY_S) -> AsyncIterator[None]:
    """`take` is called now and every `every_s` seconds; what it raises is logged."""
    task = asyncio.create_task(_run(take, every_s))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _run(take: Callable[[], Awaitable[None]], every_s: float) -> None:
    while True:
        try:
            await take()
        except Exception:
            log.exception("sampling the fleet failed")
        await asyncio.sleep(every_s)
