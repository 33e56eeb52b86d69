"""A whole answer: waits until every sample of a request has ended."""

import asyncio
from collections.abc import Callable, Sequence

from tonnage_sim.engine.sample import Sample
from tonnage_sim.faults import Faults
from tonnage_sim.http1.exchange import Exchange


class Collect:
    """Counts the samples down; a client that goes away aborts them."""

    def __init__(self, exchange: Exchange, faults: Faults) -> None:
        self._exchange = exchange
        self._faults = faults
        self._remaining = 0
        self._produced = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reasons: dict[Sample, str] = {}

    def start(self, samples: Sequence[Sample], abort: Callable[[], None]) -> None:
        """Expect these samples; `abort` drops them."""
        self._remaining = len(samples)
        self._abort = abort
        self._exchange.on_disconnect = abort

    def tokens(self, sample: Sample, count: int) -> None:
        """`count` more tokens of `sample` came out."""
        self._produced += count
        cut_after = self._faults.cut_after
        if cut_after is not None and self._produced >= cut_after:
            self._abort()
            self._exchange.cut()

    def ended(self, sample: Sample, reason: str) -> None:
        """`sample` will say no more."""
        self.reasons[sample] = reason
        self._remaining -= 1
        if self._remaining == 0 and not self._done.done():
            self._done.set_result(None)

    async def wait(self) -> None:
        """Until every sample has ended; cancelled when the client goes away."""
        await self._done
