"""Prefill and decode apart: which endpoint would compute a prompt for another, and the planner's rule on whether to.

The rule and its formulas are `disaggregation`'s; here they are filled in with what the scheduler knows.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tonnage_core.disaggregation import Handover, Verdict, handover
from tonnage_core.scheduling.decide import schedule
from tonnage_core.scheduling.filters import context_fits, not_refusing
from tonnage_core.scheduling.profile import make_profile
from tonnage_core.scheduling.types import Candidate, Decision, SchedulingRequest

if TYPE_CHECKING:
    from random import Random

    from tonnage_core.scheduling.scheduler import Reservation, Scheduler

PREFILL = make_profile(
    "prefill_pool",
    ("healthy", "model", "not_draining", "prefills", "context_fits", "not_refusing", "not_answering"),
    {"uncached_prefix": 1.0, "token_load": 1.0, "adapter": 0.5},
    "max_random_ties",
)
"""How a prefill endpoint is chosen: whoever is done with the prompt first; for an adapter, rather one that holds it."""
MEMORY = 50
"""Requests over which a model's share of prompts worth computing apart is averaged, exponentially."""
LENT_SHARE = 0.1
"""From this share of a model's prompt tokens on, its endpoints of role `both` compute prompts for others and nothing
else, as an endpoint of role `prefill` does: an answer generated there would wait for each of those prompts."""


@dataclass(frozen=True, slots=True)
class Link:
    """What moves KV for one model: bytes a token, GB/s one way, seconds before the first byte, seconds of the second
    call, and the share of a transfer that is hidden behind the prefill."""

    kv_bytes_per_token: float
    link_gbps: float = 50.0
    latency_s: float = 0.001
    hop_s: float = 0.003
    overlap: float = 0.0


class Lending:
    """One model's recent requests: the share of their prompt tokens whose computation apart pays, or would but for the
    answers generated there: those end soon where no new ones come.

    Tokens, and neither requests nor time: rare long prompts hold an endpoint up as many short ones do, and each of
    several routers that see a part of the traffic finds the same.
    """

    __slots__ = ("_all", "_apart")

    def __init__(self) -> None:
        self._all = self._apart = 0.0

    def note(self, prompt_tokens: int, *, apart: bool) -> None:
        """A request was placed; `apart` is the verdict's `pays_unshared`."""
        self._all += (prompt_tokens - self._all) / MEMORY
        self._apart += (prompt_tokens * apart - self._apart) / MEMORY

    def kept_free(
        self,
        candidates: Collection[Candidate],
        tried: Collection[str],
        prompt_tokens: int = 0,
        mute: Collection[str] = (),
    ) -> list[str]:
        """Ids of the endpoints of role `both` that are to take no whole request of `prompt_tokens` now: none of `mute`
        (ids), which compute no prompts for others, and none at all where an endpoint of role `decode` is not left: all
        were tried, refuse work or are too short for the prompt, and one of role `both` is not. Of those that generate
        answers only the one with the fewest, which ends them: all at once would leave the rest too much."""
        if self._apart <= LENT_SHARE * self._all:
            return []
        request, left = SchedulingRequest("", prompt_tokens), [c for c in candidates if c.id not in tried]
        if all(c.role != "decode" for c in not_refusing(request, context_fits(request, left))):
            return []
        shared = [c for c in candidates if c.role == "both" and c.id not in mute]
        fewest = min((c for c in shared if c.answers), key=lambda c: len(c.answers), default=None)
        return [c.id for c in shared if not c.answers or c is fewest]


def choose_prefill(
    scheduler: "Scheduler",
    prompt: SchedulingRequest,
    chain: list[bytes],
    tokens_per_block: float,
    rng: "Random",
    exclude: Collection[str] = (),
) -> Decision | None:
    """The endpoint of role `prefill` or `both` for the prompt, none of `exclude` (ids); None when none may take it."""
    request = SchedulingRequest(prompt.model, prompt.prompt_tokens, adapter=prompt.adapter)
    candidates = [c for c in scheduler.candidates if c.id not in exclude]
    request.matched = scheduler.matched(chain, candidates, tokens_per_block, prompt.prompt_tokens)
    return schedule(request, candidates, PREFILL, rng)


def judge(
    decode: Decision, reservation: "Reservation", prefill: Decision, prompt_tokens: int, link: Link, tokens_per_s: float
) -> Verdict:
    """The planner's rule for a request whose decode endpoint is chosen and reserved. `tokens_per_s` is the pace of a
    prefill; the rows that would stall are the requests that generate on the decode endpoint now."""
    at, ahead = decode.chosen, prefill.chosen.prefill_tokens
    return handover(
        Handover(
            prompt_tokens=prompt_tokens,
            uncached_decode=reservation.prefill_tokens,
            uncached_prefill=max(1, prompt_tokens - prefill.matched_tokens),
            decode_rows=at.decoding,
            prefill_s_per_token=1 / tokens_per_s,
            kv_bytes_per_token=link.kv_bytes_per_token,
            link_gbps=link.link_gbps,
            latency_s=link.latency_s,
            hop_s=link.hop_s,
            overlap=link.overlap,
            waiting_decode_s=(at.prefill_tokens - reservation.prefill_tokens) / tokens_per_s,
            waiting_prefill_s=ahead / tokens_per_s,
            prefill_rows=len(prefill.chosen.answers),
        )
    )
