"""Sharing between replicas of the router: prefix blocks, load and quotas, through one stream of a store.

A task of its own, in rounds: what is new here is appended, what others appended is read and taken in. Requests never
wait for it. While the store does not answer, decisions go on with what this process knows; what is to be told waits,
bounded, and tenants' use is a running total, so that the first round after an outage evens the quotas out.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Sequence
from typing import Any

from tonnage_core.flow_control.peers import Load, Peers, Report, Use
from tonnage_core.flow_control.tenants import TenantAccount
from tonnage_router.errors import PeerEntryError
from tonnage_router.fleet import Endpoint
from tonnage_router.gateway import Gateway
from tonnage_router.share_codec import Entry, decode, encode
from tonnage_router.shared_index import SharedIndex
from tonnage_runtime.store import START, Store, StoreError

log = logging.getLogger(__name__)

BLOCKS_A_ROUND = 8192
KEEP_ENTRIES = 512
STREAM_TTL_S = 900.0
PAGE = 256
PAGES_A_ROUND = 8
LONGEST_PAUSE_S = 2.0
NOTHING = Load()


class Sharing:
    """One replica's part. `now` is monotonic seconds."""

    def __init__(self, gateway: Gateway, store: Store, replica: str | None = None) -> None:
        settings = gateway.settings
        self._gateway, self._store = gateway, store
        self._stream = f"router/{settings.fleet}"
        self._interval_s = settings.share_interval_s
        self.replica = replica or uuid.uuid4().hex[:12]
        self.peers = Peers(settings.share_expire_s)
        self.index = gateway.scheduler.index = SharedIndex(gateway.scheduler.index)
        self._cursor = START
        self._history = True
        """What is read was written before this replica came: its gauges are of the past."""
        self._accounts: dict[str, TenantAccount] = {}
        self._told: dict[str, tuple[int, int]] = {}
        self._totals: dict[str, Use] = {}
        self._charged: dict[str, int] = {}
        """Tokens that other replicas told, by tenant."""
        self._healthy: bool | None = None
        gateway.sharing = self

    async def run(self) -> None:
        """Rounds until cancelled; after failures with a growing pause."""
        pause = self._interval_s
        while True:
            await asyncio.sleep(pause)
            done = await self.round(time.monotonic())
            pause = self._interval_s if done else min(LONGEST_PAUSE_S, 2 * pause)

    async def close(self) -> None:
        """Say that nothing is held here any more, if the store answers, and close it."""
        entry = Entry(
            Report(self.replica, {}, {name: Use(u.tokens, u.requests) for name, u in self._totals.items()}), {}
        )
        try:
            async with asyncio.timeout(1.0):
                await self._store.append(self._stream, encode(entry), keep=KEEP_ENTRIES, ttl_s=STREAM_TTL_S)
        except (StoreError, TimeoutError):
            log.info("the store did not take the last word")
        await self._store.close()

    async def round(self, now: float) -> bool:
        """Tell, then listen; False when the store did not do it."""
        pieces = self.index.drain(BLOCKS_A_ROUND)
        try:
            entry = Entry(self._report(), self._named(pieces))
            await self._store.append(self._stream, encode(entry), keep=KEEP_ENTRIES, ttl_s=STREAM_TTL_S)
            told, pieces = pieces, []
            self._count_blocks("sent", sum(len(blocks) for _, blocks in told))
            await self._listen()
            done = True
        except StoreError as error:
            self.index.put_back(pieces)
            self._say(False, str(error))
            done = False
        self.peers.expire(now)
        self._apply(time.monotonic())
        outcome = "ok" if done else "unavailable"
        self._gateway.metrics.share_rounds[outcome] = self._gateway.metrics.share_rounds.get(outcome, 0) + 1
        if done:
            self._say(True, "")
        return done

    def document(self) -> dict[str, Any]:
        """`/admin/sharing`: who is heard, and each tenant's tokens here and elsewhere since this replica came."""
        totals = {name: total.tokens for name, total in self._totals.items()}
        return {
            "replica": self.replica,
            "stream": self._stream,
            "healthy": self._healthy,
            "peers": self.peers.count(time.monotonic()),
            "pending_blocks": self.index.pending_blocks,
            "tenants": {n: {"tokens": total, "peer_tokens": self._charged.get(n, 0)} for n, total in totals.items()},
        }

    def _say(self, healthy: bool, problem: str) -> None:
        if healthy == self._healthy:
            return
        self._healthy = healthy
        if healthy:
            log.info("sharing with other replicas", extra={"stream": self._stream, "replica": self.replica})
        else:
            log.warning("deciding alone: the store fails", extra={"problem": problem})

    # --- telling ------------------------------------------------------------------------------------------------------

    def _report(self) -> Report:
        loads = {_key(endpoint): load for endpoint in self._gateway.fleet if (load := _own(endpoint)) != NOTHING}
        for name, account in self._gateway.tenants.accounts.items():
            self._totals[name] = self._use(name, account)
        return Report(self.replica, loads, dict(self._totals))

    def _use(self, name: str, account: TenantAccount) -> Use:
        """Running totals over the lives of an account: a reload with other limits begins a new one."""
        if self._accounts.get(name) is not account:
            self._accounts[name], self._told[name] = account, (0, 0)
        tokens, requests = self._told[name]
        self._told[name] = account.taken_tokens, account.taken_requests
        total = self._totals.get(name, Use())
        return Use(
            total.tokens + account.taken_tokens - tokens,
            total.requests + account.taken_requests - requests,
            account.held_tokens,
        )

    def _named(self, pieces: Sequence[tuple[int, Sequence[bytes]]]) -> dict[str, list[bytes]]:
        """Blocks by endpoint key; those of an endpoint that has left are dropped."""
        named: dict[str, list[bytes]] = {}
        for slot, blocks in pieces:
            endpoint = self._gateway.fleet.by_slot.get(slot)
            if endpoint is not None:
                named.setdefault(_key(endpoint), []).extend(blocks)
        return named

    # --- listening ----------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        for _ in range(PAGES_A_ROUND):
            page = await self._store.read(self._stream, self._cursor, limit=PAGE)
            self._cursor = page.cursor
            if page.lost and not self._history:
                self._count_blocks("missed", 1)
            for data in page.entries:
                self._take(data)
            if len(page.entries) < PAGE:
                break
        self._history = False

    def _take(self, data: bytes) -> None:
        try:
            entry = decode(data)
        except PeerEntryError as error:
            rounds = self._gateway.metrics.share_rounds
            rounds["unreadable"] = rounds.get("unreadable", 0) + 1
            log.debug("not taken in", extra={"problem": str(error)})
            return
        if entry.report.replica == self.replica:
            return
        if not self._history:
            self._charge(entry.report, time.monotonic())
        self._learn(entry)

    def _charge(self, report: Report, now: float) -> None:
        for name, use in self.peers.take(report, now).items():
            self._charged[name] = self._charged.get(name, 0) + use.tokens
            account = self._gateway.tenants.accounts.get(name)
            if account is not None:
                account.charge_peers(use.tokens, use.requests, now)

    def _learn(self, entry: Entry) -> None:
        if not entry.blocks:
            return
        slots = {_key(endpoint): slot for slot, endpoint in self._gateway.fleet.by_slot.items()}
        for key, blocks in entry.blocks.items():
            slot = slots.get(key)
            if slot is not None:
                self.index.learn(blocks, slot)
                self._count_blocks("received", len(blocks))

    def _apply(self, now: float) -> None:
        """Peers' load becomes part of each candidate's, and what their tenants hold part of each account's."""
        loads, freed = self.peers.loads(now), False
        for endpoint in self._gateway.fleet:
            load, before, candidate = loads.get(_key(endpoint), NOTHING), endpoint.peer_load, endpoint.candidate
            if load == before:
                continue
            candidate.requests += load.requests - before.requests
            candidate.prefill_tokens += load.prefill_tokens - before.prefill_tokens
            candidate.decode_tokens += load.decode_tokens - before.decode_tokens
            endpoint.peer_load = load
            freed = True
        if freed:
            self._gateway.admission.room_freed()
        held = self.peers.held(now)
        for name, account in self._gateway.tenants.accounts.items():
            account.peer_held_tokens = held.get(name, 0)
        self._gateway.metrics.share_peers = self.peers.count(now)

    def _count_blocks(self, direction: str, amount: int) -> None:
        blocks = self._gateway.metrics.share_blocks
        blocks[direction] = blocks.get(direction, 0) + amount
        if self.index.untold:
            blocks["untold"] = self.index.untold


def _key(endpoint: Endpoint) -> str:
    """The endpoint's name among replicas: another uid is another engine."""
    return f"{endpoint.id}@{endpoint.spec.uid}" if endpoint.spec.uid else endpoint.id


def _own(endpoint: Endpoint) -> Load:
    candidate, peers = endpoint.candidate, endpoint.peer_load
    return Load(
        candidate.requests - peers.requests,
        candidate.prefill_tokens - peers.prefill_tokens,
        candidate.decode_tokens - peers.decode_tokens,
    )
