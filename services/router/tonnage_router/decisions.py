"""Recent decisions, kept as references and put into words only when someone asks."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tonnage_core.scheduling import Decision

if TYPE_CHECKING:
    from tonnage_router.exchange import Exchange


class DecisionRecord:
    """One decision. Scores and ids are kept; candidates' later states are not shown as if they were then's."""

    __slots__ = ("_at", "_decision", "_model", "_prompt_tokens", "_request_id", "_tenant", "disaggregation")

    def __init__(self, exchange: "Exchange", decision: Decision, at: float) -> None:
        self._at = at
        self._decision = decision
        self._request_id = exchange.incoming.request_id
        self._model = exchange.facts.model
        self._tenant = exchange.tenant
        self._prompt_tokens = exchange.prompt_tokens
        self.disaggregation: str | None = None
        """Whether the prompt was computed on a prefill endpoint first, and why."""

    def document(self) -> dict[str, Any]:
        """As `/admin/decisions` shows it."""
        decision = self._decision
        rows = []
        for i, candidate in enumerate(decision.candidates):
            scores = {n: None if column is None else round(column[i], 4) for n, column in decision.columns.items()}
            total = round(decision.totals[i], 6) if decision.totals else None
            rows.append({"endpoint": candidate.id, "scores": scores, "total": total})
        return {
            "request_id": self._request_id.decode("latin-1") if self._request_id else None,
            "at": datetime.fromtimestamp(self._at, UTC).isoformat(),
            "model": self._model,
            "tenant": self._tenant,
            "prompt_tokens": self._prompt_tokens,
            "hit_tokens": decision.matched_tokens,
            "candidates": rows,
            "chosen": decision.chosen.id,
            "reason": decision.reason.value,
            "disaggregation": self.disaggregation,
        }
