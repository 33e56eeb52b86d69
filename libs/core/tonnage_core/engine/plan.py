"""What the scheduler decided for one step."""

from dataclasses import dataclass, field

from tonnage_core.engine.batch import Batch
from tonnage_core.engine.sequence import Sequence


@dataclass(slots=True)
class Plan:
    """One step: rows (a sequence and how many of its tokens are computed), and what happened to the others."""

    rows: list[tuple[Sequence, int]] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    deferred: list[Sequence] = field(default_factory=list)
    """Passed over: their adapter has no slot left in this batch."""
    batch: Batch = field(default_factory=Batch)
    swap_tokens: int = 0
    """Tokens whose KV crosses PCIe before this step, either way."""

    @property
    def scheduled_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(count for _, count in self.rows)
