"""Waiting queues: first come first served, or by priority and arrival."""

from bisect import insort
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from tonnage_core.engine.sequence import Sequence
from tonnage_core.engine.types import Policy


class WaitingQueue(Protocol):
    """What the scheduler asks of a queue."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]: ...

    def add(self, sequence: Sequence) -> None:
        """A new arrival."""
        ...

    def put_back(self, sequences: list[Sequence]) -> None:
        """Preempted or passed-over sequences, in their order, ahead of everything where the policy has an ahead."""
        ...

    def peek(self) -> Sequence:
        """The next one."""
        ...

    def pop(self) -> Sequence:
        """The next one, removed."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """Take one out wherever it stands; it must be there."""
        ...


class FcfsQueue:
    """In order of arrival; sequences put back stand in front."""

    def __init__(self) -> None:
        self._queue: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    def add(self, sequence: Sequence) -> None:
        """A new arrival, behind all."""
        self._queue.append(sequence)

    def put_back(self, sequences: list[Sequence]) -> None:
        """In front of all, keeping their order."""
        self._queue.extendleft(reversed(sequences))

    def peek(self) -> Sequence:
        """The front."""
        return self._queue[0]

    def pop(self) -> Sequence:
        """The front, removed."""
        return self._queue.popleft()

    def remove(self, sequence: Sequence) -> None:
        """Take it out."""
        self._queue.remove(sequence)


class PriorityQueue:
    """By (priority, arrival, sample), lowest first; kept sorted with the next one at the end."""

    def __init__(self) -> None:
        self._sorted: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[Sequence]:
        return reversed(self._sorted)

    def add(self, sequence: Sequence) -> None:
        """At its rank."""
        insort(self._sorted, sequence, key=_descending)

    def put_back(self, sequences: list[Sequence]) -> None:
        """At their ranks: a priority queue has no front to return to."""
        for sequence in sequences:
            self.add(sequence)

    def peek(self) -> Sequence:
        """The lowest rank."""
        return self._sorted[-1]

    def pop(self) -> Sequence:
        """The lowest rank, removed."""
        return self._sorted.pop()

    def remove(self, sequence: Sequence) -> None:
        """Take it out."""
        self._sorted.remove(sequence)


def _descending(sequence: Sequence) -> tuple[int, int, int]:
    priority, order, sample = sequence.rank
    return (-priority, -order, -sample)


def waiting_queue(policy: Policy) -> WaitingQueue:
    """The queue of a policy."""
    return FcfsQueue() if policy == "fcfs" else PriorityQueue()
