"""Recent decisions, kept as references and put into words only when someone asks."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tonnage_core.scheduling import Decision, Profile
from tonnage_core.scheduling.decide import contributions
from tonnage_router.slo_admission import explained

if TYPE_CHECKING:
    from tonnage_router.exchange import Exchange


class DecisionRecord:
    """One decision. Scores and ids are kept; candidates' later states are not shown as if they were then's."""

    __slots__ = (
        "_admission",
        "_at",
        "_decision",
        "_model",
        "_profile",
        "_prompt_tokens",
        "_request_id",
        "_tenant",
        "disaggregation",
        "number",
    )

    def __init__(self, exchange: "Exchange", decision: Decision, at: float, number: int, profile: Profile) -> None:
        self.number = number
        """Counts this process's decisions from 1."""
        self._at = at
        self._profile = profile
        self._decision = decision
        self._request_id = exchange.incoming.request_id
        self._model = exchange.facts.model
        self._tenant = exchange.tenant
        self._admission = exchange.admission
        self._prompt_tokens = exchange.prompt_tokens
        self.disaggregation: str | None = None
        """Whether the prompt was computed on a prefill endpoint first, and why."""

    def summary(self) -> dict[str, Any]:
        """The decision without its candidates."""
        decision = self._decision
        return {
            "number": self.number,
            "request_id": self._request_id.decode("latin-1") if self._request_id else None,
            "at": datetime.fromtimestamp(self._at, UTC).isoformat(),
            "model": self._model,
            "tenant": self._tenant,
            "prompt_tokens": self._prompt_tokens,
            "hit_tokens": decision.matched_tokens,
            "considered": len(decision.candidates),
            "chosen": decision.chosen.id,
            "reason": decision.reason.value,
            "disaggregation": self.disaggregation,
        }

    def document(self) -> dict[str, Any]:
        """As `/admin/decisions` shows it: `scores` are raw, `parts` what each adds to `total`."""
        decision = self._decision
        added = contributions(decision.columns, self._profile)
        rows = []
        for i, candidate in enumerate(decision.candidates):
            scores = {n: None if column is None else round(column[i], 4) for n, column in decision.columns.items()}
            parts = {name: round(column[i], 6) for name, column in added.items()}
            total = round(decision.totals[i], 6) if decision.totals else None
            rows.append({"endpoint": candidate.id, "scores": scores, "parts": parts, "total": total})
        weights = {scorer.name: weight for scorer, weight in self._profile.scorers}
        admission = explained(self._admission) if self._admission is not None else None
        found = {"policy": self._profile.name, "weights": weights, "candidates": rows, "admission": admission}
        return {**self.summary(), **found}


def explanation(decision: Decision, endpoint: str) -> bytes:
    """A decision as header lines, for an answer to a client that asked why."""
    return b"x-tonnage-endpoint: %b\r\nx-tonnage-reason: %b\r\nx-tonnage-hit-tokens: %d\r\n" % (
        endpoint.encode(),
        decision.reason.encode(),
        decision.matched_tokens,
    )
