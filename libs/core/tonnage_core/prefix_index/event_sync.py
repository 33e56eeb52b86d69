"""Following a numbered stream of events without believing a gap: order, replay, loss, restart. Pure.

vLLM numbers its batches from 0 and keeps the latest for replay. The follower asks for everything from 0 when it
connects, and for what is missing when a number is skipped; what cannot be had any more empties the view, since a
missed removal would leave blocks that are gone.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")


class Note(Enum):
    """What was noticed; a label value."""

    GAP = "gap"
    RESTART = "restart"
    LOST = "lost"
    """Batches that replay no longer has."""
    DISCONNECT = "disconnect"


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget the view: it is empty and known to be (`complete`), or not known any more."""

    complete: bool


@dataclass(frozen=True, slots=True)
class Apply(Generic[T]):
    """Follow this batch."""

    batch: T


@dataclass(frozen=True, slots=True)
class Replay:
    """Ask for every batch from this number on; then tell `replayed` of each and `replay_ended`."""

    first: int


Effect = Reset | Apply[T] | Replay
_Held = tuple[int, bytes, T]


class EventSync(Generic[T]):
    """One publisher's stream. `replays`: it answers replay requests. At most `max_held` batches wait for a replay.

    `note` hears what went wrong. Every call returns the effects to carry out, in order.
    """

    def __init__(self, note: Callable[[Note], None], *, replays: bool, max_held: int = 4096) -> None:
        self._note = note
        self._replays = replays
        self._held: deque[_Held[T]] = deque(maxlen=max_held)
        self.next: int | None = None
        """Number of the batch that follows what was applied; None while unknown."""
        self._publisher = b""
        self._first: int | None = None
        self.live = False
        """Connected and not waiting for a replay."""

    def connected(self) -> list[Effect[T]]:
        """The connection stands, perhaps again: begin from the publisher's first batch."""
        self._held.clear()
        self.next = None
        if not self._replays:
            self.live = True
            return [Reset(False)]
        return [Reset(True), self._ask(0)]

    def disconnected(self) -> list[Effect[T]]:
        """Nothing is known of the engine from here on."""
        self._note(Note.DISCONNECT)
        self.live = False
        self._first = None
        self._held.clear()
        return [Reset(False)]

    def restarted(self) -> list[Effect[T]]:
        """The engine behind the address is another process."""
        self._note(Note.RESTART)
        return self.connected()

    def message(self, number: int, publisher: bytes, batch: T) -> list[Effect[T]]:
        """A batch came from the stream. `publisher` tells processes apart, where they say who they are."""
        if not self.live:
            if self._first is not None:
                self._held.append((number, publisher, batch))
            return []
        return self._in_order(number, publisher, batch)

    def replayed(self, number: int, batch: T) -> list[Effect[T]]:
        """A batch of the replay that was asked for."""
        if self._first is None or self.next is None or number < self.next:
            return []
        effects: list[Effect[T]] = []
        if number > self.next:  # the publisher's buffer no longer reaches back that far
            self._note(Note.LOST)
            effects.append(Reset(False))
        self.next = number + 1
        return [*effects, Apply(batch)]

    def replay_ended(self) -> list[Effect[T]]:
        """The replay is whole: go on with what came meanwhile."""
        if self._first is None:
            return []
        self.live = True
        stuck = self.next == self._first
        self._first = None
        return self._drain(stuck)

    def replay_failed(self) -> list[Effect[T]]:
        """No answer to the replay request: what it would have held is lost."""
        if self._first is None:
            return []
        self.live = True
        self._first = None
        self.next = None
        self._note(Note.LOST)
        return [Reset(False), *self._drain(stuck=True)]

    def _ask(self, first: int) -> Replay:
        self.live = False
        self._first = self.next = first
        return Replay(first)

    def _in_order(self, number: int, publisher: bytes, batch: T) -> list[Effect[T]]:
        if publisher != self._publisher:
            changed, self._publisher = self._publisher != b"", publisher
            if changed:
                return self._begin_again(number, publisher, batch)
        if self.next is not None and number < self.next:
            return self._begin_again(number, publisher, batch)
        effects: list[Effect[T]] = []
        if self.next is not None and number > self.next:
            self._note(Note.GAP)
            if self._replays:
                ask = self._ask(self.next)
                self._held.append((number, publisher, batch))
                return [ask]
            self._note(Note.LOST)
            effects.append(Reset(False))
        elif self.next is None and number == 0:
            effects.append(Reset(True))
        self.next = number + 1
        return [*effects, Apply(batch)]

    def _begin_again(self, number: int, publisher: bytes, batch: T) -> list[Effect[T]]:
        effects = self.restarted()
        if self.live:
            return [*effects, *self._in_order(number, publisher, batch)]
        self._held.append((number, publisher, batch))
        return effects

    def _drain(self, stuck: bool) -> list[Effect[T]]:
        """Batches held during a replay. When the replay brought nothing, asking again would not either."""
        effects: list[Effect[T]] = []
        held, self._held = list(self._held), deque(maxlen=self._held.maxlen)
        for place, (number, publisher, batch) in enumerate(held):
            if self.next is not None and number < self.next:
                continue  # the replay had it
            if stuck and self.next is not None and number > self.next:
                self._note(Note.LOST)
                effects.append(Reset(False))
                self.next = number
            stuck = False
            effects += self._in_order(number, publisher, batch)
            if not self.live:
                self._held.extend(held[place + 1 :])
                break
        return effects
