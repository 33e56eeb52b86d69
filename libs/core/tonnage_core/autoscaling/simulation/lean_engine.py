"""An engine lean enough for millions of requests: the step model of `engine`, without blocks and prefix cache.

A step takes the decode rows, fills the token budget with prompts in order of arrival, and lasts what `StepClock` says.
Steps that only decode are taken many at once. KV is counted in tokens: a prompt that does not fit waits, and growth of
those admitted is reserved by keeping a share free instead of preempting. `tests/unit/autoscale_sim` holds it against
`engine.Engine` with the prefix cache off.
"""

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush

from tonnage_core.engine.batch import Batch, StepClock

KV_RESERVE = 0.05
"""Share of the KV tokens kept for the growth of admitted requests."""


@dataclass(slots=True, eq=False)
class Job:
    """One request: lengths in tokens; times in seconds, unknown until they have happened."""

    arrival_s: float
    prompt: int
    output: int
    first_s: float = -1.0
    last_s: float = -1.0

    @property
    def ttft_s(self) -> float:
        """From arrival to the first token."""
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        """Mean time a token after the first; 0 for a single token."""
        return (self.last_s - self.first_s) / (self.output - 1) if self.output > 1 else 0.0


@dataclass(slots=True)
class LeanCounters:
    """Totals since the engine started."""

    begun: int = 0
    """First tokens."""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: int = 0


class LeanEngine:
    """One replica from `now_s` on. `kv_tokens` is its cache, `budget` the most tokens in one step."""

    def __init__(self, clock: StepClock, *, budget: int, kv_tokens: int, max_seqs: int, now_s: float) -> None:
        self.now_s = now_s
        self.waiting: deque[Job] = deque()
        self.waiting_tokens = 0
        """Prompt tokens not computed yet, the prompt in progress included."""
        self.counters = LeanCounters()
        self.ended: list[Job] = []
        """Finished requests that nobody has collected."""
        self.started: list[Job] = []
        """Requests whose first token nobody has counted."""
        self._clock = clock
        self._budget = budget
        self._room = int(kv_tokens * (1 - KV_RESERVE))
        self._kv_tokens = kv_tokens
        self._max_seqs = max_seqs
        self._batch = Batch()
        self._step = 0
        self._decoding: list[tuple[int, int, Job]] = []
        """Heap of (step after which it ends, tie, job)."""
        self._context = 0
        """KV tokens of decoding rows."""
        self._current: Job | None = None
        self._done = 0
        """Tokens of the current prompt that are computed."""
        self._ties = 0

    @property
    def rows(self) -> int:
        """Requests in the running batch."""
        return len(self._decoding) + (self._current is not None)

    @property
    def in_flight(self) -> int:
        """Requests it holds."""
        return len(self.waiting) + self.rows

    @property
    def kv_usage(self) -> float:
        """Share of the KV tokens in use, 0 to 1."""
        return min(1.0, (self._context + self._done) / self._kv_tokens)

    def submit(self, job: Job) -> None:
        """Queue a request; arrivals must not go backwards."""
        self.waiting.append(job)
        self.waiting_tokens += job.prompt

    def run_until(self, until_s: float) -> None:
        """Run every step that starts before `until_s`."""
        while self.now_s < until_s:
            if self._prompt_ready():
                self._mixed_step()
            elif self._decoding:
                self._decode_steps(until_s)
            elif self.waiting and self.waiting[0].arrival_s < until_s:
                self.now_s = max(self.now_s, self.waiting[0].arrival_s)
            else:
                self.now_s = until_s

    def _prompt_ready(self) -> bool:
        if self._current is not None:
            return True
        if not self.waiting or self.waiting[0].arrival_s > self.now_s or len(self._decoding) >= self._max_seqs:
            return False
        # An empty engine takes any prompt: one that never fits would otherwise stand for ever.
        return self._context + self.waiting[0].prompt <= self._room or not self._context

    def _mixed_step(self) -> None:
        """One step with prompts in it."""
        batch, rows = self._batch, len(self._decoding)
        batch.decode_rows = batch.sampled_rows = rows
        batch.decode_context = self._context + rows
        batch.prefill_tokens = batch.prefill_context = batch.prefill_pairs = batch.prefill_chunks = 0
        left = max(1, self._budget - rows)
        begun: list[Job] = []
        while left > 0 and self._prompt_ready():
            left -= self._take_chunk(left, begun)
        self.now_s += self._clock.seconds(batch)
        self._advance_rows(1)
        for job in begun:
            self._begin(job)

    def _take_chunk(self, most: int, begun: list[Job]) -> int:
        job = self._current
        if job is None:
            job = self._current = self.waiting.popleft()
            self._done = 0
        chunk = min(most, job.prompt - self._done)
        ends = self._done + chunk == job.prompt
        self._batch.add_prefill(chunk, self._done, 1 if ends else 0)
        self._done += chunk
        self.waiting_tokens -= chunk
        if ends:
            begun.append(job)
            self._context += job.prompt
            self._current, self._done = None, 0
        return chunk

    def _begin(self, job: Job) -> None:
        """The prompt is computed: its first token is out."""
        job.first_s = self.now_s
        self.started.append(job)
        self.counters.begun += 1
        self.counters.prompt_tokens += job.prompt
        self.counters.generation_tokens += 1
        if job.output <= 1:
            self._end(job, job.prompt)
            return
        self._ties += 1
        heappush(self._decoding, (self._step + job.output - 1, self._ties, job))

    def _decode_steps(self, until_s: float) -> None:
        """Steps without prompts, up to the first that ends a request, lets one in or reaches `until_s`."""
        rows, batch = len(self._decoding), self._batch
        batch.decode_rows = batch.sampled_rows = rows
        batch.prefill_tokens = 0
        batch.decode_context = self._context + rows
        first = self._clock.seconds(batch)
        stop = until_s
        if self.waiting and self.now_s < self.waiting[0].arrival_s < until_s:
            stop = self.waiting[0].arrival_s
        steps = min(self._decoding[0][0] - self._step, int((stop - self.now_s) / first) + 1)
        batch.decode_context += rows * (steps - 1)
        # The time of a decode step is linear in its context, so the mean of the ends is exact.
        self.now_s += steps * (first + self._clock.seconds(batch)) / 2
        self._advance_rows(steps)

    def _advance_rows(self, steps: int) -> None:
        """Every decoding row gets `steps` tokens; those that are complete leave."""
        rows = self._decoding
        self._step += steps
        self._context += steps * len(rows)
        self.counters.generation_tokens += steps * len(rows)
        while rows and rows[0][0] <= self._step:
            job = heappop(rows)[2]
            self._end(job, job.prompt + job.output - 1)

    def _end(self, job: Job, context: int) -> None:
        job.last_s = self.now_s
        self._context -= context
        self.counters.finished += 1
        self.ended.append(job)
