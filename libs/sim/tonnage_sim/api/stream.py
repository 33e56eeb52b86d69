"""A stream of server-sent events, written by the engine's step."""

from collections.abc import Callable, Sequence
from typing import Protocol

from tonnage_sim.api.chunks import DONE
from tonnage_sim.api.usage import Usage
from tonnage_sim.engine.sample import Sample
from tonnage_sim.faults import Faults
from tonnage_sim.http1.exchange import Exchange

EVENT_STREAM = "text/event-stream; charset=utf-8"


class ChunkFormat(Protocol):
    """Turns what the samples say into framed chunks."""

    def opening(self, first: Sample) -> bytes:
        """What precedes the first token of all, framed; may be empty."""
        ...

    def token(self, sample: Sample, index: int) -> bytes:
        """Token number `index` of `sample`, framed; the last one carries the finish reason."""
        ...

    def cut_short(self, sample: Sample, reason: str) -> bytes:
        """The end of a sample that stopped before its last token, framed."""
        ...

    def usage(self, usage: Usage) -> bytes:
        """The last chunk, with the usage, framed."""
        ...


class Stream:
    """Sends the samples of one request as they come; holds back while the client does not read."""

    def __init__(
        self,
        exchange: Exchange,
        faults: Faults,
        final_usage: Callable[[Sequence[Sample], int | None], Usage] | None,
    ) -> None:
        """`final_usage` makes the last chunk's usage from the samples and the first one's cached tokens."""
        self._exchange = exchange
        self._faults = faults
        self._final_usage = final_usage
        self._samples: list[Sample] = []
        self._sent: dict[Sample, int] = {}
        self._ended: dict[Sample, str] = {}
        self._produced = 0
        self._opened = False
        self._first_cached: int | None = None

    def start(self, samples: Sequence[Sample], chunks: ChunkFormat, abort: Callable[[], None]) -> None:
        """Send the head; `abort` drops the samples when the client goes away."""
        self._chunks = chunks
        self._samples = list(samples)
        self._sent = dict.fromkeys(samples, 0)
        self._abort = abort
        self._exchange.on_disconnect = abort
        self._exchange.on_resume = self._resume
        self._exchange.start_stream(EVENT_STREAM)

    def tokens(self, sample: Sample, first: int, last: int) -> None:
        """Tokens `first` to `last - 1` of `sample` came out."""
        if not self._opened:
            self._open(sample)
        self._produced += last - first
        if not self._exchange.paused:
            self._send(sample, last)
        cut_after = self._faults.cut_after
        if cut_after is not None and self._produced >= cut_after:
            self._abort()
            self._exchange.cut()

    def ended(self, sample: Sample, reason: str) -> None:
        """`sample` will say no more."""
        if not self._opened:
            self._open(sample)
        self._ended[sample] = reason
        if not self._exchange.paused:
            self._finish()

    def _open(self, sample: Sample) -> None:
        self._opened = True
        self._first_cached = sample.cached_tokens
        self._exchange.write(self._chunks.opening(sample))

    def _send(self, sample: Sample, last: int) -> None:
        token = self._chunks.token
        sent = self._sent[sample]
        self._sent[sample] = last
        if last - sent == 1:
            self._exchange.write(token(sample, sent))
        elif last > sent:
            self._exchange.write(b"".join(token(sample, index) for index in range(sent, last)))

    def _resume(self) -> None:
        for sample in self._samples:
            self._send(sample, sample.produced)
        self._finish()

    def _finish(self) -> None:
        if len(self._ended) < len(self._samples) or self._exchange.done:
            return
        tail = [
            self._chunks.cut_short(sample, reason)
            for sample, reason in self._ended.items()
            if sample.produced < len(sample.output.token_ids)
        ]
        if self._final_usage is not None:
            tail.append(self._chunks.usage(self._final_usage(self._samples, self._first_cached)))
        tail.append(self._exchange.chunk(DONE))
        self._exchange.write(b"".join(tail))
        self._exchange.end_stream()
