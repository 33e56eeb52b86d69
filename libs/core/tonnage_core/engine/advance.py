"""The end of a step: tokens come out, samples fork, sequences end; the records that follow from it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tonnage_core.engine.plan import Plan
from tonnage_core.engine.scheduler import Scheduler
from tonnage_core.engine.sequence import LiveRequest, Sequence
from tonnage_core.engine.types import EngineCounters, FinishReason, RequestTimeline, RowResult


@dataclass(slots=True)
class Row:
    """What a step does for one sequence, as it is found out."""

    sequence: Sequence
    prefill_tokens: int = 0
    first_scheduled: bool = False
    new_tokens: list[tuple[int, int]] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    preempted: bool = False
    ended: bool = False

    def result(self) -> RowResult:
        """The row as the caller of a step sees it."""
        live = self.sequence.live
        return RowResult(
            request_id=live.request.request_id,
            sample=self.sequence.sample,
            prefill_tokens=self.prefill_tokens,
            new_tokens=tuple(self.new_tokens),
            finished=tuple(self.finished),
            finish_reason=live.request.finish_reason if self.ended else None,
            preempted=self.preempted,
            hit_tokens=live.hit_tokens if self.first_scheduled else None,
            first_scheduled=self.first_scheduled,
        )


class Advance:
    """Applies plans to sequences; keeps the counters and the timelines of requests that ended."""

    def __init__(self, scheduler: Scheduler, counters: EngineCounters, *, keep_gaps: bool) -> None:
        self._scheduler = scheduler
        self._counters = counters
        self._keep_gaps = keep_gaps
        self._caching = scheduler.kv.pool.caching
        self.ended: list[RequestTimeline] = []
        """Requests that ended and have not been collected yet."""
        self.started: list[tuple[float, str]] = []
        """(time, request id) of first tokens that have not been collected yet."""

    def scheduled(self, admitted: Iterable[Sequence], start_s: float) -> None:
        """Note when requests first run and count their cache look-ups; a resumed request's are not counted again."""
        for sequence in admitted:
            live = sequence.live
            if live.scheduled_s is None:
                live.scheduled_s = start_s
                if self._caching:
                    self._counters.query_tokens += sequence.prompt
                    self._counters.hit_tokens += live.hit_tokens

    def apply(self, plan: Plan, end_s: float) -> list[Row]:
        """Advance every row of a plan to the step's end."""
        return [self._advance(sequence, count, end_s) for sequence, count in plan.rows]

    def _advance(self, sequence: Sequence, count: int, end_s: float) -> Row:
        decoding = sequence.decoding
        row = Row(sequence, 0 if decoding else count, first_scheduled=not sequence.live.announced)
        sequence.live.announced = True
        sequence.computed += count
        if decoding:
            self._emit(row, sequence, end_s)
            if sequence.outputs >= sequence.request.output_tokens:
                self._end_if_done(row, sequence, end_s)
            return row
        if sequence.computed < sequence.tokens:
            return row
        samples = [sequence]
        if not sequence.outputs:
            self._counters.prompt_tokens += sequence.prompt
            if sequence.request.n > 1:
                samples += self._scheduler.fork(sequence)
        for sample in samples:
            self._emit(row, sample, end_s)
        for sample in samples:
            self._end_if_done(row, sample, end_s)
        return row

    def _emit(self, row: Row, sample: Sequence, end_s: float) -> None:
        row.new_tokens.append((sample.sample, sample.outputs))
        self._counters.generation_tokens += 1
        live = sample.live
        live.output_tokens += 1
        live.last_token_s = end_s
        if live.first_token_s is None:
            live.first_token_s = end_s
            self.started.append((end_s, live.request.request_id))
        if sample.outputs and self._keep_gaps:
            live.gaps_s.append(end_s - sample.last_token_s)
        sample.outputs += 1
        sample.last_token_s = end_s

    def _end_if_done(self, row: Row, sample: Sequence, end_s: float) -> None:
        if sample.outputs < sample.request.output_tokens:
            return
        row.finished.append(sample.sample)
        self._scheduler.remove(sample)
        live = sample.live
        live.unfinished -= 1
        if not live.unfinished:
            row.ended = True
            self._counters.finished += 1
            self.ended.append(timeline(live, end_s, live.request.finish_reason))


def timeline(live: LiveRequest, finished_s: float, reason: FinishReason) -> RequestTimeline:
    """A request's record once it has ended."""
    request = live.request
    return RequestTimeline(
        request_id=request.request_id,
        submitted_s=live.submitted_s,
        scheduled_s=live.scheduled_s,
        first_token_s=live.first_token_s,
        last_token_s=live.last_token_s,
        finished_s=finished_s,
        prompt_tokens=request.prompt_tokens,
        hit_tokens=live.hit_tokens,
        output_tokens=live.output_tokens,
        preemptions=live.preemptions,
        finish_reason=reason,
        gaps_s=live.gaps_s,
    )
