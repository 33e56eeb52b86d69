"""One request under way: what was asked, the instants of its life, and how it ended. Filled by the hot path."""

from enum import StrEnum
from time import perf_counter

from tonnage_loadgen.sse import CompletionStream


class Outcome(StrEnum):
    """How a request ended; `http_<status>` stands beside these for answers other than 200."""

    OK = "ok"
    REFUSED = "connection_refused"
    UNREACHABLE = "unreachable"
    RESET = "connection_reset"
    CUT = "stream_cut"
    UNFINISHED = "stream_unfinished"
    STREAM_ERROR = "stream_error"
    BAD_RESPONSE = "bad_response"
    NO_TOKENS = "no_tokens"
    TIMEOUT = "timeout"
    CLIENT_LIMIT = "client_limit"
    CANCELLED = "cancelled"
    """The client gave up, as its plan said; no error."""


class Exchange:
    """One request and its answer; all times are `perf_counter` seconds."""

    __slots__ = ("body", "dispatched", "index", "intended", "outcome", "reused", "sent", "status", "stream")

    def __init__(self, index: int, intended: float, stream: CompletionStream | None = None) -> None:
        self.index = index
        self.intended = intended
        self.dispatched: float | None = None
        self.sent: float | None = None
        self.status = 0
        self.outcome: str | None = None
        self.stream = CompletionStream() if stream is None else stream
        self.body = b""
        """The answer's body when it is no stream, at most `BODY_KEPT` bytes."""
        self.reused = False
        """Its connection had carried a request before."""

    def settle(self) -> None:
        """The answer is complete: name the outcome."""
        stream = self.stream
        stream.end(perf_counter())
        if self.status != 200:
            self.outcome = f"http_{self.status}"
        elif stream.error is not None:
            self.outcome = Outcome.STREAM_ERROR
        elif not stream.done:
            self.outcome = Outcome.UNFINISHED if stream.times else Outcome.BAD_RESPONSE
        elif not stream.times:
            self.outcome = Outcome.NO_TOKENS
        else:
            self.outcome = Outcome.OK

    def lost(self) -> None:
        """The connection ended before the answer was complete."""
        stream = self.stream
        stream.end(perf_counter())
        if self.status not in (0, 200) or stream.error is not None or stream.done:
            self.settle()
        else:
            self.outcome = Outcome.CUT if self.status else Outcome.RESET
