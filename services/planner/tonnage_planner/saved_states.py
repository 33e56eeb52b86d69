"""Pools' states in the store, so that a planner that starts again remembers its targets and what it learned."""

import asyncio
import json
import logging
from collections.abc import Mapping

from tonnage_core.autoscaling.state_codec import StateDocumentError, decode, encode
from tonnage_core.autoscaling.state_machine import PoolState
from tonnage_planner.fleet import Fleet
from tonnage_runtime.clock import Clock
from tonnage_runtime.store import Store, StoreError

KEY = "tonnage/planner/states"
log = logging.getLogger("tonnage.planner")


class SavedStates:
    """One document for all pools. A store that does not answer costs nothing but the memory: it is logged."""

    def __init__(self, store: Store, clock: Clock, *, interval_s: float) -> None:
        self._store = store
        self._clock = clock
        self._interval_s = interval_s

    async def restore(self, fleet: Fleet) -> None:
        """Give `fleet` the states that were saved; a damaged one is set aside and logged."""
        try:
            body = await self._store.get(KEY)
        except StoreError as error:
            log.warning("saved targets cannot be read; starting from what runs", extra={"error": str(error)})
            return
        if body is not None:
            fleet.restore(self._decoded(body))

    async def save(self, fleet: Fleet) -> None:
        """Write every pool's state."""
        now = self._clock.monotonic()
        pools = {pool: encode(state, now) for pool, state in fleet.states.items() if state.target is not None}
        document = {"saved_wall_s": self._clock.wall(), "pools": pools}
        try:
            await self._store.set(KEY, json.dumps(document).encode())
        except StoreError as error:
            log.warning("targets were not saved", extra={"error": str(error)})

    async def run(self, fleet: Fleet) -> None:
        """Save for ever, and once more when cancelled."""
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                await self.save(fleet)
        finally:
            await self.save(fleet)

    def _decoded(self, body: bytes) -> Mapping[str, PoolState]:
        try:
            document = json.loads(body)
            elapsed = self._clock.wall() - float(document["saved_wall_s"])
            pools = dict(document["pools"])
        except (ValueError, KeyError, TypeError) as error:
            log.warning("saved targets are damaged; starting from what runs", extra={"error": str(error)})
            return {}
        states: dict[str, PoolState] = {}
        for pool, saved in pools.items():
            try:
                states[pool] = decode(saved, self._clock.monotonic(), elapsed)
            except StateDocumentError as error:
                log.warning("a saved target is damaged", extra={"pool": pool, "error": str(error)})
        return states
