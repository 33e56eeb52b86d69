"""Recent decisions, packed small and put into words only when someone asks.

A thousand decisions kept as they are would be some 1.5 MB of little objects: each request would free cold ones and push
what it works on out of the processor's cache, which cost a fifth of its CPU.
"""

from array import array
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tonnage_core.scheduling import Decision, Profile
from tonnage_core.scheduling.decide import contributions
from tonnage_router.slo_admission import explained

if TYPE_CHECKING:
    from tonnage_router.exchange import Exchange

UNSCORED: Final = -1
"""The policy asks no scorers, or there was one candidate only."""


class DecisionRecord:
    """One decision. Scores and ids are kept; candidates' later states are not shown as if they were then's."""

    __slots__ = (
        "_admission",
        "_at",
        "_candidates",
        "_chosen",
        "_given",
        "_held_s",
        "_matched_tokens",
        "_model",
        "_profile",
        "_prompt_tokens",
        "_reason",
        "_request_id",
        "_tenant",
        "_values",
        "disaggregation",
        "number",
    )

    def __init__(self, exchange: "Exchange", decision: Decision, at: float, number: int, profile: Profile) -> None:
        self.number = number
        """Counts this process's decisions from 1."""
        self._at = at
        self._profile = profile
        self._candidates = decision.candidates
        self._chosen = decision.chosen
        self._reason = decision.reason
        self._matched_tokens = decision.matched_tokens
        self._given = UNSCORED
        """Which of the profile's scorers had an opinion, a bit each."""
        values: list[float] = []
        if decision.columns:
            self._given = 0
            for i, column in enumerate(decision.columns.values()):
                if column is not None:
                    self._given |= 1 << i
                    values += column
            values += decision.totals
        self._values = array("d", values)
        """The columns of those scorers, then the totals."""
        self._request_id = exchange.incoming.request_id
        self._model = exchange.facts.model
        self._tenant = exchange.tenant
        self._admission = exchange.admission
        self._held_s = exchange.held_s
        self._prompt_tokens = exchange.prompt_tokens
        self.disaggregation: str | None = None
        """Whether the prompt was computed on a prefill endpoint first, and why."""

    def summary(self) -> dict[str, Any]:
        """The decision without its candidates."""
        return {
            "number": self.number,
            "request_id": self._request_id.decode("latin-1") if self._request_id else None,
            "at": datetime.fromtimestamp(self._at, UTC).isoformat(),
            "model": self._model,
            "tenant": self._tenant,
            "prompt_tokens": self._prompt_tokens,
            "hit_tokens": self._matched_tokens,
            "considered": len(self._candidates),
            "chosen": self._chosen.id,
            "reason": self._reason.value,
            "held_ms": round(self._held_s * 1e3, 3),
            "disaggregation": self.disaggregation,
        }

    def _unpacked(self) -> tuple[dict[str, list[float] | None], list[float]]:
        """Columns by scorer name, and totals, as the decision had them."""
        columns: dict[str, list[float] | None] = {}
        if self._given == UNSCORED:
            return columns, []
        values, size, at = self._values.tolist(), len(self._candidates), 0
        for i, (scorer, _) in enumerate(self._profile.scorers):
            columns[scorer.name] = None
            if self._given >> i & 1:
                columns[scorer.name] = values[at : at + size]
                at += size
        return columns, values[at:]

    def document(self) -> dict[str, Any]:
        """As `/admin/decisions` shows it: `scores` are raw, `parts` what each adds to `total`."""
        columns, totals = self._unpacked()
        added = contributions(columns, self._profile)
        rows = []
        for i, candidate in enumerate(self._candidates):
            scores = {n: None if column is None else round(column[i], 4) for n, column in columns.items()}
            parts = {name: round(column[i], 6) for name, column in added.items()}
            total = round(totals[i], 6) if totals else None
            rows.append({"endpoint": candidate.id, "scores": scores, "parts": parts, "total": total})
        weights = {scorer.name: weight for scorer, weight in self._profile.scorers}
        admission = explained(self._admission) if self._admission is not None else None
        found = {"policy": self._profile.name, "weights": weights, "candidates": rows, "admission": admission}
        return {**self.summary(), **found}


def explanation(decision: Decision, endpoint: str) -> bytes:
    """A decision as header lines, for an answer to a client that asked why."""
    lines = b"x-tonnage-endpoint: %b\r\nx-tonnage-reason: %b\r\nx-tonnage-hit-tokens: %d\r\n" % (
        endpoint.encode(),
        decision.reason.encode(),
        decision.matched_tokens,
    )
    return lines + b"x-tonnage-decision: %d\r\n" % decision.number if decision.number else lines
