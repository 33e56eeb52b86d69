"""One engine's event sockets: a subscription that reconnects by itself, and replays on request. No thread, no task.

ZeroMQ's descriptor becomes readable on a change only, so every wake-up reads until nothing is left; after a long run
the rest waits for the loop's next turn.
"""

import asyncio
from typing import Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

A_TURN = 100
"""Messages handled before other tasks of the event loop get their turn."""
MAX_MESSAGE_BYTES = 64 << 20
_SEQUENCE_BYTES = 8
END = -1
"""The sequence number that ends a replay."""


class Listener(Protocol):
    """Who hears what the sockets bring, on the event loop."""

    def connected(self) -> None:
        """The subscription stands, perhaps again."""

    def disconnected(self) -> None:
        """The publisher is gone."""

    def message(self, number: int, publisher: bytes, payload: bytes) -> None:
        """A batch of the stream; `publisher` is empty when it does not say who it is."""

    def replayed(self, number: int, payload: bytes) -> None:
        """A batch of a replay."""

    def replay_ended(self) -> None:
        """The last batch of a replay was told."""

    def unreadable(self) -> None:
        """A message that is not of the protocol."""


class EventSockets:
    """The subscription to `events`, and replays from `replay` where that is given (addresses such as
    `tcp://10.0.0.1:5557`)."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        events: str,
        replay: str | None,
        topic: bytes,
        listener: Listener,
    ) -> None:
        self._context = context
        self._replay_address = replay
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._replay: zmq.Socket[bytes] | None = None
        self._stream = self._socket(zmq.SUB)
        self._stream.setsockopt(zmq.SUBSCRIBE, topic)
        self._stream.setsockopt(zmq.RECONNECT_IVL, 200)
        self._stream.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        self._stream.setsockopt(zmq.HEARTBEAT_IVL, 5000)
        self._stream.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15000)
        self._monitor = self._stream.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._watch(self._stream)
        self._watch(self._monitor)
        self._stream.connect(events)
        self._loop.call_soon(self._ready)

    def _socket(self, kind: int) -> "zmq.Socket[bytes]":
        made = self._context.socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.IPV6, 1)
        made.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        return made

    def _watch(self, made: "zmq.Socket[bytes]") -> None:
        self._loop.add_reader(made.fileno(), self._ready)

    def _close(self, made: "zmq.Socket[bytes]") -> None:
        self._loop.remove_reader(made.fileno())
        made.close()

    def ask(self, first: int) -> None:
        """Ask for every batch from number `first` on; an earlier request's answers are no longer heard."""
        if self._replay_address is None:
            return
        self.forget_replay()
        self._replay = self._socket(zmq.DEALER)
        self._replay.connect(self._replay_address)
        self._watch(self._replay)
        self._replay.send_multipart([b"", first.to_bytes(_SEQUENCE_BYTES, "big")], zmq.NOBLOCK)
        self._loop.call_soon(self._ready)

    def forget_replay(self) -> None:
        """The answer is whole, or no longer wanted."""
        if self._replay is not None:
            self._close(self._replay)
            self._replay = None

    def close(self) -> None:
        """Close everything; nothing is heard afterwards."""
        if self._closed:
            return
        self._closed = True
        self.forget_replay()
        self._loop.remove_reader(self._monitor.fileno())
        self._stream.disable_monitor()
        self._close(self._stream)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _ready(self) -> None:
        if self._closed:
            return
        self._read_monitor()  # first: a stream is heard from its connection on
        more = self._read_stream()
        more = self._read_replay() or more
        if more and not self._closed:
            self._loop.call_soon(self._ready)

    def _read_monitor(self) -> None:
        while not self._closed:
            try:
                event = recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"]
            except zmq.Again:
                return
            if event == zmq.EVENT_DISCONNECTED:
                self._listener.disconnected()
            else:
                self._listener.connected()

    def _read_stream(self) -> bool:
        """True when there may be more."""
        for _ in range(A_TURN):
            if self._closed:
                return False
            try:
                frames = self._stream.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            number = frames[-2] if len(frames) > 1 else b""
            if len(number) < _SEQUENCE_BYTES:
                self._listener.unreadable()
                continue
            publisher = number[_SEQUENCE_BYTES:]
            self._listener.message(int.from_bytes(number[:_SEQUENCE_BYTES], "big"), publisher, frames[-1])
        return True

    def _read_replay(self) -> bool:
        for _ in range(A_TURN):
            if self._replay is None:
                return False
            try:
                frames = self._replay.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            number = int.from_bytes(frames[-2], "big", signed=True) if len(frames) > 1 else None
            if number == END:
                self.forget_replay()
                self._listener.replay_ended()
                return False
            if number is None or number < 0:
                self._listener.unreadable()
            else:
                self._listener.replayed(number, frames[-1])
        return True
