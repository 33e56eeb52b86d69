"""Prompts that wait for the answers they would break.

Where even the best endpoint has answers in flight that a prompt would make too slow (`answers`), sending it a moment
later costs it a little of the time its first token has, and sending it now costs somebody else's whole answer. So it
waits until such an answer has ended, is chosen for anew then, and goes wherever it is by the time that its own limit
needs it to.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tonnage_core.scheduling.answers import PATIENCE
from tonnage_core.scheduling.scorers import answers_spoilt
from tonnage_core.scheduling.types import Candidate, SchedulingRequest
from tonnage_core.slo import Slo

HOLD_SHARE: Final = 0.6
"""Share of the TTFT limit after which nothing is held any more; the rest is for the engine.

In simulation (benchmarks/results/2026-11-30-router-holding.json) 0.5 to 0.8 differ by less than two runs of one do.
"""
RETRY_S: Final = 0.25
"""A prompt is chosen for anew when an answer ends where it was to go, and this often whatever happens."""
MOST_HELD: Final = 64
"""Prompts held at a time: each costs decisions. More than that are sent at once."""

T = TypeVar("T")


def breaks_answers(request: SchedulingRequest, chosen: Candidate) -> bool:
    """Whether the prompt would make answers in flight on `chosen` too slow."""
    return request.prompt_tokens > PATIENCE and answers_spoilt(request, chosen) > 0


@dataclass(frozen=True, slots=True)
class HoldRule:
    """How long a prompt waits, of requests with the limits `slo`: for `share` of their TTFT limit at most, and not so
    long that it is late."""

    slo: Slo
    share: float = HOLD_SHARE

    def has_time(
        self,
        prompt_tokens: int,
        chosen: Candidate,
        waited_s: float,
        prefill_tokens_per_s: float,
        cached_tokens: int = 0,
    ) -> bool:
        """Whether a prompt that came `waited_s` ago may wait on rather than go to `chosen`: what the endpoint has to
        compute before it counts as waiting too. It may go `RETRY_S` later than it must, and as much is left to the
        engine: under a limit of twice that nothing waits. Nor does what such a wait would make late; what would be late
        had it not waited at all has nothing to lose."""
        limit_s = self.slo.ttft_limit_ms(prompt_tokens) / 1e3
        longest_s = min(self.share * limit_s, limit_s - 2 * RETRY_S)
        begun_s = waited_s + chosen.prefill_tokens / prefill_tokens_per_s
        slack_s = limit_s - begun_s - (prompt_tokens - cached_tokens) / prefill_tokens_per_s
        return begun_s < longest_s and (slack_s >= 1.5 * RETRY_S or slack_s + waited_s < 0)


class HeldPrompts(Generic[T]):
    """What waits, by the endpoint that it was chosen for last; the earliest deadline first."""

    __slots__ = ("_by_slot", "_count")

    def __init__(self) -> None:
        self._by_slot: dict[int, list[tuple[float, int, T]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_slot.values()))

    def __iter__(self) -> Iterator[T]:
        return (item for waiting in self._by_slot.values() for _, _, item in waiting)

    @property
    def full(self) -> bool:
        """Nothing more is held."""
        return len(self) >= MOST_HELD

    def add(self, item: T, slot: int, deadline_s: float) -> None:
        """`item` waits for an answer of the endpoint in `slot`."""
        self._count += 1
        self._by_slot.setdefault(slot, []).append((deadline_s, self._count, item))

    def waits_for(self, slot: int) -> bool:
        """Whether something waits for an answer of `slot`."""
        return slot in self._by_slot

    def take(self, slots: Iterable[int] | None = None) -> list[T]:
        """Take out what waits for any of `slots`, None: everything."""
        found: list[tuple[float, int, T]] = []
        for slot in list(self._by_slot) if slots is None else slots:
            found += self._by_slot.pop(slot, ())
        found.sort(key=lambda entry: entry[:2])
        return [item for _, _, item in found]
