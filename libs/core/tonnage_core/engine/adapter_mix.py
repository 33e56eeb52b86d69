"""Which adapter each request of a trace asks for: by popularity, the same for all turns of a conversation."""

from bisect import bisect
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from tonnage_core.engine.errors import BadEngineConfigError
from tonnage_core.engine.jitter import uniform
from tonnage_core.traces import TraceRequest


@dataclass(frozen=True)
class AdapterMix:
    """`count` adapters asked for in proportion to 1 / place^zipf; zipf 0 asks for all alike."""

    count: int
    zipf: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1 or self.zipf < 0:
            raise BadEngineConfigError(
                f"{self.count} adapters with zipf {self.zipf:g}; at least 1 adapter and a zipf of at least 0 are needed"
            )

    @cached_property
    def _reached(self) -> list[float]:
        return list(accumulate(1 / (place + 1) ** self.zipf for place in range(self.count)))

    def of(self, request: TraceRequest) -> str:
        """The request's adapter: requests that begin with the same block ask for the same one."""
        first = request.hash_ids[0] if request.hash_ids else -1 - request.index
        place = bisect(self._reached, uniform(self.seed, first) * self._reached[-1])
        return f"adapter-{min(place, self.count - 1)}"
