"""What each fault cost, against what its part promises (docs/trust.md)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from load import Record

ROUTERS = {"router": 0, "compared-router": 1}

DYING_S = 0.5
"""From SIGKILL to closed sockets, on a busy machine."""


@dataclass(frozen=True)
class Span:
    """When a fault held, in monotonic seconds; `until` is when the next one began."""

    began: float
    ended: float
    until: float


def judged(fault: dict[str, Any], span: Span, records: Sequence[Record], victim: str) -> dict[str, Any]:
    """The fault's row: what failed, what of it is within the promise, and times during and after."""
    failed = [r for r in records if r.outcome != "ok" and span.began <= r.ended < span.until]
    beyond = [r for r in failed if not _promised(fault, span, r, victim)]
    inside = [r for r in records if span.began <= r.started < span.until]
    return {
        "fault": fault["name"],
        "promise": fault.get("promise", "nothing"),
        "sent": len(inside),
        "moved_before_sent": sum(r.moved > 0 for r in inside),
        "failed": dict(Counter(r.outcome for r in failed)),
        "beyond_promise": len(beyond),
        "examples": [f"{r.outcome} router {r.router} at {r.endpoint}: {r.detail}" for r in beyond[:5]],
        "during_ms": _times([r for r in inside if r.started < span.ended]),
        "after_ms": _times([r for r in inside if r.started >= span.ended]),
    }


def _promised(fault: dict[str, Any], span: Span, record: Record, victim: str) -> bool:
    """`open_streams`: a dead router loses what was open on it, nothing else. `begun_streams`: an engine that breaks
    ends the answers it had begun, each with an error that says so."""
    promise = fault.get("promise", "nothing")
    if promise == "open_streams":
        # The kernel takes connections for a dying process until its sockets are closed.
        open_then = record.started <= fault["died"] + DYING_S and record.ended >= span.began
        return record.router == ROUTERS[fault["target"]] and record.outcome == "lost" and open_then
    if promise == "begun_streams":
        begun = record.first_byte is not None and record.endpoint == victim
        return begun and record.outcome == "error_event" and record.started < span.ended
    return False


def _times(records: Sequence[Record]) -> dict[str, Any]:
    """p50 and p99 in wall ms of the time to the first token and of the whole answer."""
    ok = [r for r in records if r.outcome == "ok" and r.first_token is not None]
    if not ok:
        return {"requests": len(records)}
    first = sorted((r.first_token - r.started) * 1e3 for r in ok if r.first_token is not None)
    whole = sorted((r.ended - r.started) * 1e3 for r in ok)
    return {
        "requests": len(records),
        "ttft_p50": round(_at(first, 0.5), 1),
        "ttft_p99": round(_at(first, 0.99), 1),
        "e2e_p50": round(_at(whole, 0.5), 1),
        "e2e_p99": round(_at(whole, 0.99), 1),
    }


def _at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """For people."""
    lines = [
        f"{'fault':44} {'sent':>5} {'failed':>7} {'beyond':>7} {'back s':>7} {'TTFT p99 during':>16} {'after':>8} ms"
    ]
    for row in rows:
        during, after = (str(row[part].get("ttft_p99", "-")) for part in ("during_ms", "after_ms"))
        failed = sum(row["failed"].values())
        lines.append(
            f"{row['fault'][:44]:44} {row['sent']:5} {failed:7} {row['beyond_promise']:7} {row['settled_s']:7.1f} "
            f"{during:>16} {after:>8}"
        )
    return "\n".join(lines)
