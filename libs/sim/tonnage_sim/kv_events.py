"""KV events as vLLM 0.32 publishes them: a numbered ZeroMQ stream of msgpack batches, the latest kept for replay."""

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import zmq

from tonnage_core.engine.cache_log import CacheChange, Evicted, Stored
from tonnage_core.engine.types import BlockKey
from tonnage_core.errors import BadInputError
from tonnage_sim.engine.sample import Sample
from tonnage_sim.settings import KvEventsConfig

_SEQUENCE_BYTES = 8
_END = (-1).to_bytes(_SEQUENCE_BYTES, "big", signed=True)
_CLEARED = {"type": "AllBlocksCleared"}


class KvEventPublisher:
    """Binds the sockets when made; `start` answers replays on the running loop. `endpoint` and `replay_endpoint` are
    the bound addresses."""

    def __init__(self, config: KvEventsConfig, block_size: int) -> None:
        self._block_size = block_size
        self._topic = config.topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self.number = 0
        """Of the next batch."""
        self._events: list[dict[str, Any]] = []
        self._encode = msgspec.msgpack.Encoder().encode
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._stream = self._bound(zmq.PUB, config.endpoint, config.hwm)
        self.endpoint = self._stream.getsockopt_string(zmq.LAST_ENDPOINT)
        self._replay = None if config.replay_endpoint is None else self._bound(zmq.ROUTER, config.replay_endpoint, 0)
        self.replay_endpoint = None if self._replay is None else self._replay.getsockopt_string(zmq.LAST_ENDPOINT)

    def _bound(self, kind: int, address: str, hwm: int) -> "zmq.Socket[bytes]":
        made = self._context.socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        made.set_hwm(hwm)
        try:
            made.bind(address)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise BadInputError(f"kv_events_config: {address} cannot be bound: {error}") from error
        return made

    def start(self) -> None:
        """Answer replay requests from here on."""
        if self._replay is not None:
            asyncio.get_running_loop().add_reader(self._replay.fileno(), self._answer)

    def close(self) -> None:
        """Stop publishing."""
        if self._replay is not None:
            asyncio.get_running_loop().remove_reader(self._replay.fileno())
        self._context.destroy(linger=0)

    # --- what the engine's loop tells ---------------------------------------------------------------------------------

    def changed(self, changes: Sequence[CacheChange], samples: Mapping[str, Sample]) -> None:
        """What a step did, as it is decided."""
        for change in changes:
            if isinstance(change, Evicted):
                self._events += map(_removed, change.keys)
            else:
                sample = samples.get(change.request_id)
                if sample is not None:
                    self._events.append(self._stored(change, sample))

    def step_ended(self) -> None:
        """Send the step's batch, if it has any event; and look for replay requests that came meanwhile."""
        if self._events:
            events, self._events = self._events, []
            self._send(events)
        self._answer()

    def cleared(self) -> None:
        """The cache is empty."""
        self._events.append(_CLEARED)
        self.step_ended()

    def _stored(self, change: Stored, sample: Sample) -> dict[str, Any]:
        size, count = self._block_size, len(change.keys)
        adapter = sample.adapter
        extra: list[tuple[str, ...] | None] = [None if adapter is None else (adapter,)] * count
        if sample.salt and change.first == 0:
            extra[0] = (*(extra[0] or ()), sample.salt)
        return {
            "type": "BlockStored",
            "block_hashes": list(change.keys),
            "parent_block_hash": change.parent,
            "token_ids": _tokens(sample, change.first * size, (change.first + count) * size),
            "block_size": size,
            "lora_id": None if adapter is None else 1,
            "medium": "GPU",
            "lora_name": adapter,
            "extra_keys": extra,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }

    def _send(self, events: Sequence[dict[str, Any]]) -> None:
        payload = self._encode([time.time(), events, 0])
        number, self.number = self.number, self.number + 1
        self._stream.send_multipart([self._topic, number.to_bytes(_SEQUENCE_BYTES, "big"), payload])
        self._kept.append((number, payload))

    # --- replays ------------------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        """The descriptor tells of changes only: read until nothing is left."""
        if self._replay is None:
            return
        while True:
            try:
                frames = self._replay.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) == 3:
                self._replay_from(frames[0], int.from_bytes(frames[2], "big"))

    def _replay_from(self, client: bytes, first: int) -> None:
        assert self._replay is not None
        for number, payload in self._kept:
            if number >= first:
                frames = [client, b"", self._topic, number.to_bytes(_SEQUENCE_BYTES, "big"), payload]
                self._replay.send_multipart(frames)
        self._replay.send_multipart([client, b"", b"", _END, b""])


def _removed(key: BlockKey) -> dict[str, Any]:
    """One event a block, as vLLM has it."""
    return {"type": "BlockRemoved", "block_hashes": [key], "medium": "GPU", "group_idx": 0}


def _tokens(sample: Sample, start: int, stop: int) -> list[int]:
    """Ids of the sample's tokens `start` to `stop`, prompt and output in one row."""
    prompt = sample.prompt
    found = list(prompt[start:stop])
    if stop > len(prompt):
        found += sample.output.token_ids[max(0, start - len(prompt)) : stop - len(prompt)]
    return found
