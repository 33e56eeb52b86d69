"""The last minutes of each pool, one sample a scrape, so that a page that is opened late still shows them."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tonnage_core.autoscaling.engine_metrics import Signal
from tonnage_core.autoscaling.observation import Knowledge, Observation
from tonnage_planner.console.reading import total
from tonnage_planner.fleet import Decided

KEPT = 300
"""Samples: ten minutes at the default interval."""
SERIES = (
    "listed", "fresh", "desired", "running", "waiting", "kv_usage", "hit_rate", "prompt_tok_s", "output_tok_s",
    "requests_s", "preemptions_s",
)  # fmt: skip
RATES = ("prompt_tokens", "generation_tokens", "finished_requests", "preemptions", "prefix_queries", "prefix_hits")


@dataclass(frozen=True)
class Sample:
    """A pool at one moment: sums over the endpoints that were known, None where none was."""

    listed: int
    fresh: int
    desired: int | None
    running: float | None
    waiting: float | None
    kv_used: float | None
    kv_known: int
    rates: Mapping[str, float | None]

    def value(self, name: str) -> float | None:
        """One of `SERIES`."""
        match name:
            case "kv_usage":
                return self.kv_used / self.kv_known if self.kv_used is not None and self.kv_known else None
            case "hit_rate":
                queries, hits = self.rates["prefix_queries"], self.rates["prefix_hits"]
                return hits / queries if queries and hits is not None else None
            case "prompt_tok_s":
                return self.rates["prompt_tokens"]
            case "output_tok_s":
                return self.rates["generation_tokens"]
            case "requests_s":
                return self.rates["finished_requests"]
            case "preemptions_s":
                return self.rates["preemptions"]
        found: float | None = getattr(self, name)
        return found


def sample_of(seen: Sequence[Observation], desired: int | None) -> Sample:
    """One pool's sample; of several pools, their union."""
    fresh = [one for one in seen if one.knowledge is Knowledge.FRESH]
    used = [value for one in fresh if (value := one.value(Signal.KV_USAGE)) is not None]
    return Sample(
        listed=len(seen),
        fresh=len(fresh),
        desired=desired,
        running=total([one.value(Signal.RUNNING) for one in fresh]),
        waiting=total([one.value(Signal.WAITING) for one in fresh]),
        kv_used=sum(used) if used else None,
        kv_known=len(used),
        rates={name: total([one.rates_per_s.get(name) for one in fresh]) for name in RATES},
    )


class History:
    """Samples by pool; the empty name is the whole fleet."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, Sample]]] = deque(maxlen=KEPT)

    def add(self, wall_s: float, seen: Sequence[Observation], decided: Mapping[str, Decided]) -> None:
        """One sample of every pool, at Unix time `wall_s`."""
        pools: dict[str, list[Observation]] = {pool: [] for pool in decided}
        for one in seen:
            pools.setdefault(one.pool, []).append(one)
        targets = {pool: one.decision.target for pool, one in decided.items()}
        samples = {pool: sample_of(members, targets.get(pool)) for pool, members in pools.items()}
        samples[""] = sample_of(seen, sum(targets.values()) if targets else None)
        self._samples.append((wall_s, samples))

    @property
    def pools(self) -> Iterable[str]:
        """Pools of the newest sample."""
        return sorted(name for name in self._samples[-1][1] if name) if self._samples else ()

    def document(self, pool: str) -> dict[str, Any]:
        """Columns of one pool, or of the fleet for the empty name, oldest first."""
        found = [(at, samples.get(pool)) for at, samples in self._samples]
        series = {name: [_rounded(sample.value(name)) if sample else None for _, sample in found] for name in SERIES}
        return {"pool": pool or None, "at": [round(at, 2) for at, _ in found], "series": series}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
