"""Iteration-level scheduling: running sequences first, then waiting ones, under a token budget.

The rules are those of vLLM 0.32's V1 scheduler: running sequences in order of admission, each getting the tokens it
lacks; then waiting ones with their prefix hits, admitted only when all of their known tokens fit; no admission in a
step that preempted; a sequence whose adapter has no slot in the batch is passed over, not waited for.
"""

from tonnage_core.engine.kv_blocks import KvBlocks
from tonnage_core.engine.plan import Plan
from tonnage_core.engine.preemption import Preemption
from tonnage_core.engine.sequence import Sequence
from tonnage_core.engine.types import EngineConfig
from tonnage_core.engine.waiting import waiting_queue


class Scheduler:
    """Queues of one engine, and the decision what the next step computes."""

    def __init__(self, config: EngineConfig, kv: KvBlocks) -> None:
        self.config = config
        self.kv = kv
        self.preemption = Preemption(config, kv)
        self.running: list[Sequence] = []
        self.waiting = waiting_queue(config.policy)
        self.deferred: set[Sequence] = set()
        """Waiting sequences that were passed over for want of an adapter slot, until they run; vLLM counts them so."""
        self.stalled = False
        """The last step only decoded and admitted nobody: until something ends or arrives, neither will the next."""
        self.finished_rows = 0
        self.finished_context = 0
        """Static batching: rows that have ended and still ride along, and their KV tokens."""
        self._seats = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.add(sequence)
        self.stalled = False

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence that ended out of the running ones and free its blocks."""
        self.running.remove(sequence)
        self._seats -= sequence.samples_ahead
        self.stalled = False
        if self.config.batching == "static" and self.running:
            self.finished_rows += 1
            self.finished_context += sequence.tokens
        elif not self.running:
            self.finished_rows = self.finished_context = 0
        if self.config.async_scheduling and sequence.request.finish_reason == "stop":
            self.kv.overrun(sequence)
        self.kv.free(sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """Take an aborted sequence out of wherever it is."""
        self.stalled = False
        if sequence in self.running:
            self.running.remove(sequence)
            self._seats -= sequence.samples_ahead
            if not self.running:
                self.finished_rows = self.finished_context = 0
        else:
            self.waiting.remove(sequence)
            self.deferred.discard(sequence)
            if sequence.swapped_tokens:
                self.preemption.forget(sequence.swapped_tokens)
        self.kv.free(sequence)

    def fork(self, parent: Sequence) -> list[Sequence]:
        """Start the other samples of a request whose prompt has just been computed; they run next to the first."""
        forks = self.kv.fork(parent, parent.request.n)
        place = self.running.index(parent) + 1
        self.running[place:place] = forks
        return forks

    def schedule(self) -> Plan:
        """Decide one step and take the blocks it needs; the caller then advances the rows."""
        plan = Plan()
        chunk = self._longest_chunk()
        budget = self._schedule_running(plan, self.config.max_num_batched_tokens, chunk)
        if not plan.preempted and not (self.config.batching == "static" and self.running):
            self._admit(plan, budget, chunk)
        self._sum_up(plan)
        idle = not plan.admitted and not plan.preempted and not plan.batch.prefill_chunks
        self.stalled = idle and len(self.waiting) > 0
        return plan

    def _longest_chunk(self) -> int:
        threshold = self.config.long_prefill_token_threshold
        alone = len(self.running) + len(self.waiting) <= 1
        return threshold if threshold and not alone else self.config.max_num_batched_tokens

    def _schedule_running(self, plan: Plan, budget: int, chunk: int) -> int:
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            count = min(sequence.tokens - sequence.computed, chunk, budget)
            while not self.kv.grow(sequence, count):
                place = self.preemption.victim(self.running)
                index -= place < index
                victim = self.running[place]
                budget += self._preempt(plan, victim)
                if victim is sequence:
                    return budget
            plan.rows.append((sequence, count))
            budget -= count
            index += 1
        return budget

    def _preempt(self, plan: Plan, victim: Sequence) -> int:
        self.running.remove(victim)
        self._seats -= victim.samples_ahead
        returned = sum(count for sequence, count in plan.rows if sequence is victim)
        plan.rows = [row for row in plan.rows if row[0] is not victim]
        plan.swap_tokens += self.preemption.evict(victim)
        plan.preempted.append(victim)
        self.waiting.put_back([victim])
        return returned

    def _admit(self, plan: Plan, budget: int, chunk: int) -> None:
        static = self.config.batching == "static"
        adapters = {s.request.adapter for s, _ in plan.rows if s.request.adapter is not None}
        promised = 0
        while len(self.waiting) and (budget > 0 or static):
            sequence = self.waiting.peek()
            if self._seats + sequence.samples_ahead > self.config.max_num_seqs:
                break
            adapter = sequence.request.adapter
            if adapter is not None and adapter not in adapters and len(adapters) >= self.config.adapter_slots:
                plan.deferred.append(self.waiting.pop())
                continue
            hits = self.kv.hits(sequence)
            if not self.kv.fits_whole(sequence, hits, promised):
                break
            self._start(plan, self.waiting.pop(), hits)
            count = min(sequence.tokens - sequence.computed, chunk, budget)
            if count:
                self._add_row(plan, sequence, count)
                budget -= count
            if static:
                promised += self.kv.missing(sequence, len(sequence.blocks))
            if adapter is not None:
                adapters.add(adapter)
        self.waiting.put_back(plan.deferred)
        self.deferred.update(plan.deferred)

    def _start(self, plan: Plan, sequence: Sequence, hits: list[int]) -> None:
        if sequence.swapped_tokens:
            plan.swap_tokens += sequence.swapped_tokens
            self.preemption.bring_back(sequence.swapped_tokens)
        self.kv.admit(sequence, hits)
        if not sequence.live.preemptions:
            sequence.live.hit_tokens = sequence.computed
        self.deferred.discard(sequence)
        self.running.append(sequence)
        self._seats += sequence.samples_ahead
        plan.admitted.append(sequence)

    def _add_row(self, plan: Plan, sequence: Sequence, count: int) -> None:
        fits = self.kv.grow(sequence, count)
        assert fits, "admission checked that the whole sequence fits"
        plan.rows.append((sequence, count))

    def _sum_up(self, plan: Plan) -> None:
        batch = plan.batch
        batch.decode_rows = batch.sampled_rows = self.finished_rows if plan.rows else 0
        batch.decode_context = self.finished_context if plan.rows else 0
        for sequence, count in plan.rows:
            if sequence.decoding:
                batch.add_decode(sequence.tokens)
            else:
                batch.add_prefill(count, sequence.computed, sequence.computed + count == sequence.tokens)
