"""Choose, reserve and count in one step, over a fleet that comes and goes.

The live router and the simulated fleet share it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tonnage_core.prefix_index.exact_index import ExactIndex
from tonnage_core.prefix_index.index import PrefixIndex, matched_blocks, slots_of
from tonnage_core.scheduling.answers import prompt_work
from tonnage_core.scheduling.decide import schedule
from tonnage_core.scheduling.filters import Filter
from tonnage_core.scheduling.profile import Profile
from tonnage_core.scheduling.types import MIN_MATCH_TOKENS, Candidate, Decision, SchedulingRequest

if TYPE_CHECKING:
    from random import Random

HOLDERS_SHARE = 2
"""One in this many places of a shortlist goes to the holders of the longest prefixes, half as many to holders of the
request's adapter, the rest to a random sample."""


@dataclass(slots=True, eq=False, init=False)
class Reservation:
    """What one request holds on one candidate, until released."""

    candidate: Candidate
    prefill_tokens: int
    context_tokens: int
    decoding: bool
    released: bool
    expected: Sequence[bytes]
    """Blocks of the exact index that this request is about to add."""
    expects: "Scheduler | None"
    relieved_tokens: int
    """Prompt tokens that another endpoint computes instead."""
    work: int
    """What the prompt costs this endpoint, see `answers`."""
    answer: int | None
    """What ends the request's entry in the candidate's `answers`; None: it has none."""

    def __init__(self, candidate: Candidate, prefill_tokens: int, context_tokens: int) -> None:
        self.candidate = candidate
        self.prefill_tokens = prefill_tokens
        self.context_tokens = context_tokens
        self.decoding = False
        self.released = False
        self.expected = ()
        self.expects = None
        self.relieved_tokens = 0
        self.work = 0
        self.answer = None

    @classmethod
    def on(cls, candidate: Candidate, prefill_tokens: int, context_tokens: int) -> "Reservation":
        """Take a place on `candidate`."""
        candidate.requests += 1
        candidate.prefill_tokens += prefill_tokens
        return cls(candidate, prefill_tokens, context_tokens)

    def answers(self, cached_tokens: int, output_tokens: int) -> "Reservation":
        """Count the answer, of at most `output_tokens`, among those that the candidate's next prompts hold up."""
        candidate = self.candidate
        self.work = int(prompt_work(self.prefill_tokens, cached_tokens) / (candidate.gpu_speed or 1.0))
        self.answer = candidate.answers.begin(self.work, output_tokens)
        return self

    def relieve(self) -> None:
        """The prompt is computed elsewhere: but for its last token there is nothing to compute here."""
        if not self.decoding and not self.released and not self.relieved_tokens and self.prefill_tokens > 1:
            self.relieved_tokens = self.prefill_tokens - 1
            self._compute(-self.relieved_tokens)
            self.candidate.answers.relieve(self.work)

    def burden(self) -> None:
        """It was not: all of it is to be computed here after all."""
        if not self.decoding and not self.released and self.relieved_tokens:
            self._compute(self.relieved_tokens)
            self.relieved_tokens = 0
            self.candidate.answers.relieve(-self.work)

    def _compute(self, tokens: int) -> None:
        self.prefill_tokens += tokens
        self.candidate.prefill_tokens += tokens

    def first_token(self) -> None:
        """The prompt is computed: its load turns from prefill into resident context."""
        if self.decoding or self.released:
            return
        self.decoding = True
        self.candidate.decoding += 1
        self.candidate.prefill_tokens -= self.prefill_tokens
        self.candidate.decode_tokens += self.context_tokens

    def release(self) -> None:
        """Give everything back. A second call does nothing, so that every exit path may call it."""
        if self.released:
            return
        self.released = True
        candidate = self.candidate
        if self.expects is not None:
            self.expects.forget(candidate, self.expected)
        if self.answer is not None:
            candidate.answers.end(self.answer)
        candidate.requests -= 1
        if self.decoding:
            candidate.decoding -= 1
            candidate.decode_tokens -= self.context_tokens
            return
        candidate.prefill_tokens -= self.prefill_tokens
        if not self.relieved_tokens:
            candidate.answers.relieve(self.work)  # nobody waits for what is not computed


class _Eligible:
    """Candidates that may take a model's requests, whatever the request."""

    __slots__ = ("_fitting", "candidates", "classed", "kinds", "slots")

    def __init__(self, candidates: list[Candidate]) -> None:
        self.candidates = candidates
        self.slots = sum(1 << candidate.slot for candidate in candidates)
        """A bit mask of the same."""
        self.kinds = list({_kind(candidate): candidate for candidate in candidates}.values())
        """One of each kind that filters by length tell apart."""
        self.classed = any(candidate.length_class is not None for candidate in self.kinds)
        self._fitting: dict[tuple[int, ...], _Eligible] = {}

    def fitting(self, request: SchedulingRequest, filters: Sequence[Filter]) -> "_Eligible":
        """Those of them that `filters`, all by length, keep."""
        kinds = self.kinds
        if len(kinds) > 1:
            for keep in filters:
                kinds = keep(request, kinds)
        if len(kinds) == len(self.kinds):
            return self
        key = tuple(candidate.slot for candidate in kinds)
        found = self._fitting.get(key)
        if found is None:
            wanted = {_kind(candidate) for candidate in kinds}
            found = self._fitting[key] = _Eligible([c for c in self.candidates if _kind(c) in wanted])
        return found


def _kind(candidate: Candidate) -> tuple[int | None, str | None]:
    return candidate.max_model_len, candidate.length_class


class Scheduler:
    """A profile over a set of candidates with a prefix index."""

    def __init__(self, profile: Profile, rng: "Random", index: PrefixIndex | None = None) -> None:
        self.profile = profile
        self.index = index or PrefixIndex()
        self.exact = ExactIndex()
        """What engines tell of their caches; candidates with a `kv_block_size` are matched by it."""
        self._rng = rng
        self._by_slot: dict[int, Candidate] = {}
        self._eligible: dict[str, _Eligible] = {}
        self._sequence: dict[str, int] = {}

    @property
    def candidates(self) -> Collection[Candidate]:
        """All candidates, eligible or not."""
        return self._by_slot.values()

    def add(self, candidate: Candidate, index_bytes: int) -> None:
        """Take `candidate` into the fleet, its prefix knowledge bounded to `index_bytes`."""
        self._by_slot[candidate.slot] = candidate
        self.index.add_slot(candidate.slot, index_bytes)
        self.exact.add_slot(candidate.slot)
        self.changed()

    def remove(self, candidate: Candidate) -> None:
        """Drop `candidate` and what was known of its cache; running reservations stay valid."""
        self._by_slot.pop(candidate.slot, None)
        self.index.remove_slot(candidate.slot)
        self.exact.remove_slot(candidate.slot)
        self.changed()

    def forget(self, candidate: Candidate, chain: Sequence[bytes]) -> None:
        """A request with these exact blocks ended; the slot may be another candidate's by now."""
        if self._by_slot.get(candidate.slot) is candidate:
            self.exact.forget(chain, candidate.slot)

    def changed(self) -> None:
        """A field that a static filter or one by length reads has changed on some candidate."""
        self._eligible.clear()

    def eligible(self, model: str) -> list[Candidate]:
        """Candidates that pass the profile's static filters for `model`."""
        return self._eligible_for(model).candidates

    def _eligible_for(self, model: str) -> "_Eligible":
        found = self._eligible.get(model)
        if found is None:
            request, kept = SchedulingRequest(model, 0), list(self._by_slot.values())
            for keep in self.profile.static_filters:
                kept = keep(request, kept)
            found = self._eligible[model] = _Eligible(kept)
        return found

    def classed(self, model: str) -> bool:
        """Whether some of those take prompts of one length class alone."""
        return self._eligible_for(model).classed

    def choose(
        self,
        request: SchedulingRequest,
        chain: list[bytes],
        tokens_per_block: float,
        exclude: Collection[str] = (),
        exact: Mapping[int, list[bytes]] | None = None,
    ) -> tuple[Decision, Reservation] | None:
        """`decide` and `take` in one step; None when nobody is eligible."""
        decision = self.decide(request, chain, tokens_per_block, exclude, exact)
        return None if decision is None else (decision, self.take(request, decision, chain, exact))

    def decide(
        self,
        request: SchedulingRequest,
        chain: list[bytes],
        tokens_per_block: float,
        exclude: Collection[str] = (),
        exact: Mapping[int, list[bytes]] | None = None,
    ) -> Decision | None:
        """Choose, and reserve nothing; None when nobody is eligible.

        `chain` are the prompt's block hashes, each worth `tokens_per_block`; `exclude` are ids tried before. `exact`
        are chains over token ids by KV block size, for candidates whose engines tell what they cache.
        """
        eligible = self._eligible_for(request.model)
        candidates = _without(eligible.candidates, exclude) if exclude else eligible.candidates
        request.sequence = self._sequence[request.model] = self._sequence.get(request.model, -1) + 1
        request.content_key = chain[-1] if chain else None
        steps = self.index.match(chain) if chain else []
        told = self._told(exact)
        if len(candidates) > self.profile.shortlist and not self.profile.picker.whole_fleet:
            candidates = self._shortlist(eligible, request, _longest(told.values()) or steps, exclude)
        request.matched = _matched_tokens(steps, candidates, tokens_per_block, request.prompt_tokens)
        true = _with_told(request.matched, told, candidates) if told else request.matched
        if told:
            request.matched = _long_enough(true)
        decision = schedule(request, candidates, self.profile, self._rng, prefiltered=True)
        if decision is not None:
            decision.matched_tokens = true.get(decision.chosen.slot, 0)
        return decision

    def take(
        self,
        request: SchedulingRequest,
        decision: Decision,
        chain: list[bytes],
        exact: Mapping[int, list[bytes]] | None = None,
    ) -> Reservation:
        """Reserve what `decide` has just decided on the chosen candidate, and credit it with the prompt's blocks."""
        if chain:
            self.index.insert(chain, decision.chosen.slot)
        reservation = self._reserve(request, decision)
        if exact:
            self._expect(reservation, exact)
        return reservation

    def _told(self, exact: Mapping[int, list[bytes]] | None) -> dict[int, list[tuple[int, int]]]:
        return {size: self.exact.match(blocks) for size, blocks in exact.items()} if exact else {}

    def _expect(self, reservation: Reservation, exact: Mapping[int, list[bytes]]) -> None:
        """The chosen engine will hold the prompt's blocks for as long as the request runs."""
        candidate = reservation.candidate
        blocks = exact.get(candidate.kv_block_size or 0)
        if blocks:
            self.exact.expect(blocks, candidate.slot)
            reservation.expected, reservation.expects = blocks, self

    def _reserve(self, request: SchedulingRequest, decision: Decision) -> Reservation:
        uncached = max(1, request.prompt_tokens - decision.matched_tokens)
        context = request.prompt_tokens + request.output_tokens
        reservation = Reservation.on(decision.chosen, uncached, context)
        return reservation.answers(decision.matched_tokens, request.output_tokens)

    def matched(
        self, chain: list[bytes], candidates: list[Candidate], tokens_per_block: float, prompt_tokens: int
    ) -> dict[int, int]:
        """Cached prompt tokens by slot, as the index of what was routed has them."""
        return _matched_tokens(self.index.match(chain) if chain else [], candidates, tokens_per_block, prompt_tokens)

    def known_tokens(
        self,
        chain: list[bytes],
        candidates: list[Candidate],
        tokens_per_block: float,
        prompt_tokens: int,
        exact: Mapping[int, list[bytes]] | None,
    ) -> dict[int, int]:
        """As `matched`, with the word of engines that tell what they cache."""
        found = self.matched(chain, candidates, tokens_per_block, prompt_tokens)
        told = self._told(exact)
        return _with_told(found, told, candidates) if told else found

    def _shortlist(
        self,
        eligible: "_Eligible",
        request: SchedulingRequest,
        steps: list[tuple[int, int]],
        exclude: Collection[str],
    ) -> list[Candidate]:
        """Of those that take prompts of this length, holders of the longest prefixes and of the adapter, and a random
        sample: a decision's cost stays flat in the fleet's size, but where all of these are full the whole fleet is
        looked at for room. Holders stay: the prompt may wait behind less than their prefixes save."""
        fitting = eligible.fitting(request, self.profile.length_filters)
        candidates = _without(fitting.candidates, exclude) if exclude else fitting.candidates
        if not candidates:
            fitting, candidates = eligible, _without(eligible.candidates, exclude)
        if len(candidates) <= self.profile.shortlist:
            return candidates
        steps = [(depth, slots & fitting.slots) for depth, slots in steps]
        found, room = self._sample(candidates, request.adapter, steps, exclude), request.room
        if room is None or room.exists(found):
            return found
        free = room.within(candidates, {})
        holders = self.profile.shortlist // HOLDERS_SHARE
        return found[:holders] + free[: self.profile.shortlist - holders] if free else found

    def _sample(
        self, candidates: list[Candidate], adapter: str | None, steps: list[tuple[int, int]], exclude: Collection[str]
    ) -> list[Candidate]:
        size, rng, count = self.profile.shortlist, self._rng, len(candidates)
        start = int(rng.random() * count)
        holders = [self._by_slot[slot] for slot in slots_of(steps, size // HOLDERS_SHARE, start)]
        allowed = {c.slot: c for c in holders if c.id not in exclude}
        loaded = [c for c in candidates if adapter in c.adapters] if adapter is not None else []
        if loaded:
            at = int(rng.random() * len(loaded))
            allowed.update({c.slot: c for c in (loaded[at:] + loaded[:at])[: size // HOLDERS_SHARE // 2]})
        step, at = 1 + int(rng.random() * (count - 1)), start
        while len(allowed) < size:
            allowed[candidates[at].slot] = candidates[at]
            at = (at + step) % count
            if at == start:  # the step divides the fleet: on with the next round
                start = at = (at + 1) % count
        return list(allowed.values())


def _matched_tokens(
    steps: list[tuple[int, int]], candidates: list[Candidate], tokens_per_block: float, prompt_tokens: int
) -> dict[int, int]:
    found: dict[int, int] = {}
    if steps:
        for c in candidates:
            tokens = int(matched_blocks(steps, c.slot) * tokens_per_block)
            if tokens >= MIN_MATCH_TOKENS:
                found[c.slot] = min(prompt_tokens, tokens)
    return found


def _long_enough(matched: dict[int, int]) -> dict[int, int]:
    return {slot: count for slot, count in matched.items() if count >= MIN_MATCH_TOKENS}


def _without(candidates: list[Candidate], exclude: Collection[str]) -> list[Candidate]:
    return [c for c in candidates if c.id not in exclude]


def _longest(told: Collection[list[tuple[int, int]]]) -> list[tuple[int, int]] | None:
    """What the engines of the block size with the longest match say."""
    return max(told, key=lambda steps: steps[0][0] if steps else 0, default=None)


def _with_told(
    matched: dict[int, int], told: dict[int, list[tuple[int, int]]], candidates: list[Candidate]
) -> dict[int, int]:
    """`matched`, with the engine's own word where there is one, however short the match."""
    found = dict(matched)
    for c in candidates:
        steps = told.get(c.kv_block_size or 0)
        if steps is None:
            continue
        tokens = matched_blocks(steps, c.slot) * (c.kv_block_size or 0)
        if not c.kv_complete:
            tokens = max(tokens, found.get(c.slot, 0))
        found[c.slot] = tokens
    return found
