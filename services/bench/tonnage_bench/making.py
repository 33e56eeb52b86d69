"""What a worker does with a run: claim it, make it while telling that it lives, bring the result. Nothing twice.

The worker counts its lease from the instant it sent the last heartbeat that was answered; when that is over it ends the
load, because another worker may have begun the run. The result is offered until the service answers.
"""

import asyncio
import contextlib
import logging
from typing import Any

from tonnage_bench.errors import DeskError
from tonnage_bench.ports import Desk, Ref, StepRunner, Work
from tonnage_runtime.clock import Clock

BEATS_A_LEASE = 4
SAFETY = 0.8
"""Share of the lease after which a worker that hears nothing stops."""
logger = logging.getLogger("tonnage.bench.worker")


class Worker:
    """Makes runs from a desk. `patience_s`: how long a result is offered to a desk that does not answer."""

    def __init__(self, name: str, desk: Desk, runner: StepRunner, clock: Clock, patience_s: float = 300.0) -> None:
        self.name = name
        self._desk = desk
        self._runner = runner
        self._clock = clock
        self._patience_s = patience_s

    async def make(self, ref: Ref) -> str:
        """`made`, `nothing` (not ours to make), `stopped` (cancelled, lease lost) or `lost` (nobody took it)."""
        asked_s = self._clock.monotonic()
        try:
            work = await self._desk.claim(ref, self.name)
        except DeskError as error:
            logger.warning("no answer to a claim: it will be sent again", extra={"run": str(ref), "error": str(error)})
            return "nothing"
        if work is None:
            return "nothing"
        result = await self._made(ref, work, asked_s)
        if result is None:
            return "stopped"
        return await self._offered(ref, result, work)

    async def _made(self, ref: Ref, work: Work, asked_s: float) -> dict[str, Any] | None:
        load = asyncio.create_task(self._runner.run(work.question))
        started_s = self._clock.monotonic()
        held_s = asked_s
        try:
            while True:
                done, _ = await asyncio.wait({load}, timeout=work.lease_s / BEATS_A_LEASE)
                if done:
                    return load.result()
                now = self._clock.monotonic()
                if now - started_s > work.limit_s:
                    limit = f"the run took more than {work.limit_s:g} s and was ended"
                    return {"error": {"kind": "input", "message": limit}}
                with contextlib.suppress(DeskError):
                    if not await self._desk.beat(ref, self.name, now - started_s):
                        return None
                    held_s = now
                if self._clock.monotonic() - held_s > work.lease_s * SAFETY:
                    logger.warning("the service does not answer: the load is ended", extra={"run": str(ref)})
                    return None
        finally:
            load.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await load

    async def _offered(self, ref: Ref, result: dict[str, Any], work: Work) -> str:
        until_s = self._clock.monotonic() + self._patience_s
        while True:
            try:
                return "made" if await self._desk.finish(ref, self.name, result) else "stopped"
            except DeskError as error:
                logger.warning("a result waits", extra={"run": str(ref), "error": str(error)})
                if self._clock.monotonic() > until_s:
                    return "lost"
            await asyncio.sleep(work.lease_s / BEATS_A_LEASE)
