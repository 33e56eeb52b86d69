"""A stream of server-sent events, written by the engine's step."""

from collections.abc import Callable, Sequence
from typing import Protocol

from tonnage_sim.api.chunks import DONE
from tonnage_sim.api.usage import Usage
from tonnage_sim.engine.outbox import Outbox
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
        outbox: Outbox,
        faults: Faults,
        final_usage: Callable[[Sequence[Sample], int | None], Usage] | None,
    ) -> None:
        """`final_usage` makes the last chunk's usage from the samples and the first one's cached tokens."""
        self._exchange = exchange
        self._outbox = outbox
        self._faults = faults
        self._final_usage = final_usage
        self._samples: list[Sample] = []
        self._sent: list[int] = []
        self._ended: dict[Sample, str] = {}
        self._opened = False
        self._first_cached: int | None = None

    def start(self, samples: Sequence[Sample], chunks: ChunkFormat, abort: Callable[[], None]) -> None:
        """Send the head; `abort` drops the samples when the client goes away."""
        self._chunks = chunks
        self._samples = list(samples)
        self._sent = [0] * len(samples)
        self._abort = abort
        self._exchange.on_disconnect = abort
        self._exchange.on_resume = self.flush
        self._exchange.start_stream(EVENT_STREAM)

    def tokens(self, sample: Sample, count: int) -> None:
        """`count` more tokens of `sample` came out."""
        last = sample.produced == sample.output.length
        self._outbox.add(self, urgent=last or not self._opened)
        cut_after = self._faults.cut_after
        if cut_after is not None:
            self._cut(cut_after)

    def ended(self, sample: Sample, reason: str) -> None:
        """`sample` will say no more."""
        self._ended[sample] = reason
        self._outbox.add(self, urgent=True)

    def flush(self) -> None:
        """Write what came out since the last time, unless the client does not read."""
        if self._exchange.paused or self._exchange.done:
            return
        token, sent = self._chunks.token, self._sent
        frames = [] if self._opened else [self._open()]
        for sample in self._samples:
            first, last = sent[sample.index], sample.produced
            if first < last:
                sent[sample.index] = last
                frames += [token(sample, index) for index in range(first, last)]
        done = len(self._ended) == len(self._samples)
        if done:
            frames += self._closing()
        self._exchange.write(b"".join(frames))
        if done:
            self._exchange.end_stream()

    def _open(self) -> bytes:
        first = next((sample for sample in self._samples if sample.produced), self._samples[0])
        self._opened = True
        self._first_cached = first.cached_tokens
        return self._chunks.opening(first)

    def _cut(self, cut_after: int) -> None:
        produced = sum(sample.produced for sample in self._samples)
        if produced >= cut_after:
            self.flush()
            self._abort()
            self._exchange.cut()

    def _closing(self) -> list[bytes]:
        frames = [
            self._chunks.cut_short(sample, reason)
            for sample, reason in self._ended.items()
            if sample.produced < sample.output.length
        ]
        if self._final_usage is not None:
            frames.append(self._chunks.usage(self._final_usage(self._samples, self._first_cached)))
        frames.append(self._exchange.chunk(DONE))
        return frames
