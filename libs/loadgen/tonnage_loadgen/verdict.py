"""Was the generator the bottleneck? A rule, not a log line.

The limit is the larger of 10 ms and a tenth of the median TTFT in wall time: a delay below it does not show in the
latencies. Two delays are held against it at their 99th percentile: how late requests were taken up, and how late the
event loop ran. A delay counts when this process computed through most of it; any other is the machine's doing, which is
said but does not void the run. A run is void as well when the client ran out of sockets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tonnage_core.slo import RequestRecord, percentile
from tonnage_loadgen.exchange import Outcome
from tonnage_loadgen.open_loop import Load

FLOOR_S = 0.01
SHARE_OF_TTFT = 0.1


@dataclass(frozen=True, slots=True)
class ClientVerdict:
    """The generator's own figures in wall seconds, and whether they void the run (`bound`)."""

    lateness_p50_s: float | None
    lateness_p99_s: float | None
    own_lateness_p99_s: float | None
    loop_lag_p99_s: float | None
    own_loop_lag_p99_s: float | None
    limit_s: float
    cpu_s: float
    wall_s: float
    bound: bool
    reason: str | None

    def document(self) -> dict[str, Any]:
        """The report's `client`; milliseconds of wall time."""
        return {
            "lateness_ms_p50": _ms(self.lateness_p50_s),
            "lateness_ms_p99": _ms(self.lateness_p99_s),
            "own_lateness_ms_p99": _ms(self.own_lateness_p99_s),
            "loop_lag_ms_p99": _ms(self.loop_lag_p99_s),
            "own_loop_lag_ms_p99": _ms(self.own_loop_lag_p99_s),
            "limit_ms": _ms(self.limit_s),
            "cpu_s": round(self.cpu_s, 4),
            "wall_s": round(self.wall_s, 4),
            "bound": self.bound,
            "reason": self.reason,
        }


def judge(load: Load, records: Sequence[RequestRecord]) -> ClientVerdict:
    """The verdict on the generator of one load."""
    lag = load.lag
    late = sorted(r.lateness_s for r in records if r.lateness_s is not None)
    own_late = sorted(lag.own(e.intended, e.dispatched) for e in load.exchanges if e.dispatched is not None and lag.at)
    ttft = percentile(sorted(r.ttft_s for r in records if r.ok and r.ttft_s is not None), 50)
    limit = max(FLOOR_S, SHARE_OF_TTFT * (ttft or 0.0))
    found = {
        "own_lateness_p99_s": percentile(own_late, 99),
        "own_loop_lag_p99_s": percentile(sorted(lag.own_lags()), 99),
        "lateness_p99_s": percentile(late, 99),
        "loop_lag_p99_s": percentile(sorted(lag.lag), 99),
    }
    sockets = sum(r.outcome == Outcome.CLIENT_LIMIT for r in records)
    reason = _reason(found, limit, sockets)
    void = sockets > 0 or _over(found["own_lateness_p99_s"], limit) or _over(found["own_loop_lag_p99_s"], limit)
    return ClientVerdict(
        lateness_p50_s=percentile(late, 50),
        limit_s=limit,
        cpu_s=lag.cpu_s,
        wall_s=load.end - load.start,
        bound=void,
        reason=reason,
        **found,
    )


def merged(verdicts: Sequence[ClientVerdict], records: Sequence[RequestRecord]) -> ClientVerdict:
    """Several processes' verdicts as one: void when any is; delays are the worst process's, CPU is the sum."""
    worst = max(verdicts, key=lambda each: (each.bound, each.reason is not None, each.lateness_p99_s or 0.0))
    late = sorted(r.lateness_s for r in records if r.lateness_s is not None)
    return replace(
        worst,
        lateness_p50_s=percentile(late, 50),
        cpu_s=sum(each.cpu_s for each in verdicts),
        wall_s=max(each.wall_s for each in verdicts),
        bound=any(each.bound for each in verdicts),
    )


def _reason(found: dict[str, float | None], limit: float, sockets: int) -> str | None:
    if sockets:
        return f"{sockets} requests found no free socket on this machine: raise its open-file limit (ulimit -n)"
    over = f"ms at the 99th percentile, over the limit of {limit * 1e3:.1f} ms"
    for name, what in (
        ("own_lateness_p99_s", "the generator's own work delayed requests by"),
        ("own_loop_lag_p99_s", "the generator's own work delayed its event loop by"),
        ("lateness_p99_s", "this machine, busy with other work, delayed requests by"),
        ("loop_lag_p99_s", "this machine, busy with other work, delayed the generator's event loop by"),
    ):
        value = found[name]
        if value is not None and value > limit:
            return f"{what} {value * 1e3:.1f} {over}"
    return None


def _over(value: float | None, limit: float) -> bool:
    return value is not None and value > limit


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 4)
