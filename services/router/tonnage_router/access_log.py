"""The access log: one JSON line a request on stderr, gathered and written twice a second. Never prompts or keys."""

import sys
import time
from typing import TYPE_CHECKING, BinaryIO

import orjson

if TYPE_CHECKING:
    from tonnage_router.exchange import Exchange
    from tonnage_router.wire.incoming import Incoming


PATH_SHOWN = 200
"""Bytes of a path that was refused."""


class AccessLog:
    """`mode`: `off`, `errors` (whatever did not end well: refusals, errors of any status, cut streams, clients that
    left, failed attempts) or `all`."""

    def __init__(self, mode: str, stream: BinaryIO | None = None) -> None:
        self._mode = mode
        self._stream = stream or sys.stderr.buffer
        self._lines: list[bytes] = []

    def write(self, exchange: "Exchange", outcome: str, duration_s: float) -> None:
        """Note one request."""
        if self._mode == "off" or (self._mode == "errors" and outcome == "ok" and not exchange.failures):
            return
        incoming, endpoint, usage = exchange.incoming, exchange.endpoint, exchange.usage
        fields: dict[str, object] = {
            "path": incoming.path.decode("latin-1"),
            "request_id": incoming.request_id.decode("latin-1") if incoming.request_id else None,
            "model": exchange.facts.model,
            "tenant": exchange.tenant,
            "endpoint": endpoint.id if endpoint else None,
            "status": exchange.status,
            "outcome": outcome,
            "reason": exchange.decision.reason.value if exchange.decision else None,
            "decision": exchange.decision.number or None if exchange.decision else None,
            "attempts": exchange.failures or [],
            "duration_ms": round(duration_s * 1e3, 3),
            "first_byte_ms": round(exchange.first_byte_s * 1e3, 3) if exchange.first_byte_s is not None else None,
            "bytes": exchange.sent_bytes,
            "prompt_tokens": usage.prompt_tokens if usage else None,
            "completion_tokens": usage.completion_tokens if usage else None,
        }
        self._note("request", fields)

    def refused(self, incoming: "Incoming | None", status: int, why: str) -> None:
        """Note a request that ended before routing, as far as it was read."""
        if self._mode == "off":
            return
        fields: dict[str, object] = {
            "path": incoming.path[:PATH_SHOWN].decode("latin-1") if incoming is not None else None,
            "request_id": incoming.request_id.decode("latin-1") if incoming and incoming.request_id else None,
            "tenant": incoming.account.spec.name if incoming and incoming.account else None,
            "status": status,
            "why": why,
        }
        self._note("refused", fields)

    def _note(self, what: str, fields: dict[str, object]) -> None:
        line = {"ts": round(time.time(), 3), "level": "info", "service": "router", "msg": what} | fields
        self._lines.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def flush(self) -> None:
        """Write what was gathered."""
        if self._lines:
            lines, self._lines = self._lines, []
            self._stream.write(b"".join(lines))
            self._stream.flush()
