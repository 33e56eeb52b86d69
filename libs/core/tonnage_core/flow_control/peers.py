"""What replicas of a router tell each other: load they put on endpoints, and what tenants used through them.

Loads and held tokens are gauges: the last report of a replica counts until it is too old. Use is a running total, so
that a report that was lost costs nothing: the next one carries its tokens. Decisions stay local.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

FORGET_S = 3600.0
"""A silent replica's totals are kept this long: after an outage of the store its use is charged, not lost."""
MAX_PEERS = 256


@dataclass(frozen=True, slots=True)
class Load:
    """A replica's own work in flight on one endpoint."""

    requests: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0

    def plus(self, other: "Load") -> "Load":
        """Both."""
        return Load(
            self.requests + other.requests,
            self.prefill_tokens + other.prefill_tokens,
            self.decode_tokens + other.decode_tokens,
        )


@dataclass(frozen=True, slots=True)
class Use:
    """A tenant through one replica: tokens and requests taken since it started (net of what was given back), and tokens
    held by running requests."""

    tokens: int = 0
    requests: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What one replica says of itself."""

    replica: str
    """Unique to one life of the process."""
    loads: Mapping[str, Load] = field(default_factory=dict)
    uses: Mapping[str, Use] = field(default_factory=dict)


@dataclass(slots=True)
class _Peer:
    report: Report
    heard: float


class Peers:
    """Reports by replica. `now` is monotonic seconds."""

    def __init__(self, expire_s: float) -> None:
        self._expire_s = expire_s
        self._peers: dict[str, _Peer] = {}

    def take(self, report: Report, now: float) -> dict[str, Use]:
        """Keep the report; what each tenant used since the replica's last one, to be charged here. A replica heard for
        the first time is a baseline: its past was not ours to limit."""
        known = self._peers.pop(report.replica, None)
        self._peers[report.replica] = _Peer(report, now)
        while len(self._peers) > MAX_PEERS:
            del self._peers[next(iter(self._peers))]
        if known is None:
            return {}
        before = known.report.uses
        changes = {name: _since(use, before.get(name, Use())) for name, use in report.uses.items()}
        return {name: use for name, use in changes.items() if use.tokens or use.requests}

    def expire(self, now: float) -> None:
        """Forget replicas that were silent for very long."""
        for name in [name for name, peer in self._peers.items() if now - peer.heard > FORGET_S]:
            del self._peers[name]

    def loads(self, now: float) -> dict[str, Load]:
        """Work in flight by endpoint, over the replicas heard lately."""
        total: dict[str, Load] = {}
        for report in self._fresh(now):
            for endpoint, load in report.loads.items():
                total[endpoint] = total.get(endpoint, Load()).plus(load)
        return total

    def held(self, now: float) -> dict[str, int]:
        """Tokens held by tenant, over the replicas heard lately."""
        total: dict[str, int] = {}
        for report in self._fresh(now):
            for tenant, use in report.uses.items():
                total[tenant] = total.get(tenant, 0) + use.held
        return total

    def count(self, now: float) -> int:
        """Replicas heard lately."""
        return len(self._fresh(now))

    def _fresh(self, now: float) -> list[Report]:
        return [peer.report for peer in self._peers.values() if now - peer.heard <= self._expire_s]


def _since(use: Use, before: Use) -> Use:
    return Use(use.tokens - before.tokens, use.requests - before.requests)
