"""Disaggregated prefill and decode: the `kv_transfer_params` of vLLM's two-call protocol.

A prefill engine answers a request that asks for `do_remote_decode` with where its KV is; a decode engine that is handed
this as `do_remote_prefill` brings the KV over its link before it starts. Fields as vLLM 0.32's NIXL connector has them.
What is simpler: the sender's blocks stay in its prefix cache rather than being held until they are fetched, and the
receiver believes what it is told of them instead of asking the sender.
"""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from tonnage_core.disaggregation import kv_bytes, transfer_s
from tonnage_sim.api.generation import Ask, Generator
from tonnage_sim.engine.clock import EngineClock
from tonnage_sim.engine.loop import EngineLoop
from tonnage_sim.engine.sample import Sample
from tonnage_sim.errors import ApiError

Params = Mapping[str, Any]


class Handover:
    """One engine's side of it. `role` is `none` (parameters are ignored), `both`, `prefill` or `decode`."""

    def __init__(
        self,
        role: str,
        *,
        where: tuple[str, int],
        tp: int,
        bytes_per_token: float,
        link_gbps: float,
        latency_s: float,
        generator: Generator,
        loop: EngineLoop,
        clock: EngineClock,
    ) -> None:
        self._role, self._where, self._tp = role, where, tp
        self._bytes_per_token, self._link_gbps, self._latency_s = bytes_per_token, link_gbps, latency_s
        self._generator, self._loop, self._clock = generator, loop, clock
        self.engine_id = str(uuid.uuid4())
        self.imported_tokens = 0

    async def bring(self, params: Params | None, asks: Sequence[Ask]) -> None:
        """Wait for the prompt's KV to come, and take it into the prefix cache; nothing without `do_remote_prefill`."""
        if params is None or not params.get("do_remote_prefill") or self._role not in ("both", "decode"):
            return
        if len(asks) != 1 or not isinstance(params.get("remote_block_ids"), list):
            raise ApiError("kv_transfer_params: one prompt, and remote_block_ids, are expected with do_remote_prefill")
        keys = self._generator.block_keys(asks[0])
        keys = keys[: self._loop.engine.cached_prefix(keys) + len(params["remote_block_ids"])]
        missing = len(keys) - self._loop.engine.cached_prefix(keys)
        await asyncio.sleep(self.transfer_s(missing * self._generator.block_size) / self._clock.scale)
        taken = self._loop.engine.import_prefix(keys)
        self.imported_tokens += taken * self._generator.block_size

    def transfer_s(self, tokens: int) -> float:
        """Engine seconds until the KV of `tokens` is here."""
        return transfer_s(kv_bytes(tokens, self._bytes_per_token), self._link_gbps, self._latency_s)

    def offer(self, params: Params | None, samples: Sequence[Sample], reason: str) -> dict[str, Any] | None:
        """What a finished request's answer says to a decode engine; None unless it asked, and was cut by its length."""
        if params is None or not params.get("do_remote_decode") or self._role not in ("both", "prefill"):
            return None
        if reason != "length" or len(samples) != 1:
            return None
        tokens = samples[0].prompt_tokens
        host, port = self._where
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": list(range(1, 1 + -(-tokens // self._generator.block_size))),
            "remote_engine_id": self.engine_id,
            "remote_request_id": samples[0].request_id,
            "remote_host": host,
            "remote_port": port,
            "tp_size": self._tp,
            "remote_num_tokens": tokens,
        }
