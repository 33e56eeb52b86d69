"""What one replica can carry, in seconds of its own time a request, and how full it may run at the SLO.

In a loaded engine every step is full: prompts and decode rows share the token budget, and each decode row reads its
context. A request then takes `(prompt + output) x token + output x context x kv + prompt^2/2 x pair` seconds of the
replica, and the sum over the requests of a second is the load in replicas. The coefficients come from the step model
that the planner predicts with; what the fleet shows corrects them (`correction.py`).

How full: the wait behind other prompts has an exponential tail in heavy traffic, `P(W > t) = rho e^(-t/w)` with
`w = rho / (1 - rho) x S (1 + cv^2) / 2` for service time `S` (Kingman's bound for Poisson arrivals), and a router that
sends each request to the least work leaves, of `n` replicas, one queue served `n` times as fast.

Prompts beside a request slow its tokens too (`slow_share`), in an engine whose full step takes longer than a token may:
the fewer replicas there are and the fewer tokens a request generates, the less evens out.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass

from tonnage_core.engine.batch import Batch, StepClock
from tonnage_core.errors import BadInputError


@dataclass(frozen=True, slots=True)
class RequestMix:
    """The requests' shape: means in tokens, and the squared coefficient of variation of the prompts."""

    prompt: float
    output: float
    prompt_cv2: float = 1.0


@dataclass(frozen=True, slots=True)
class ReplicaCost:
    """Seconds of a full replica that one token, one KV token read and one query-key pair take."""

    token_s: float
    kv_s: float
    pair_s: float
    full_s: float = 0.0
    """Seconds of a step that uses the whole token budget, before any context is read; 0: not known."""
    step_s: float = 0.0
    """Seconds of a step of one decode row."""

    def request_s(self, prompt: float, output: float) -> float:
        """Replica-seconds of one request of `prompt` computed and `output` generated tokens."""
        return self.prefill_s(prompt) + output * (self.token_s + (prompt + output / 2) * self.kv_s)

    def prefill_s(self, prompt: float) -> float:
        """Replica-seconds of the prompt alone."""
        return prompt * self.token_s + prompt * prompt / 2 * self.pair_s


def replica_cost(clock: StepClock, budget: int) -> ReplicaCost:
    """The coefficients of an engine with steps of `budget` tokens; raises `BadInputError` for a budget below 1."""
    if budget < 1:
        raise BadInputError(f"token budget {budget}: give at least 1")
    full = clock.seconds(Batch(prefill_tokens=budget, prefill_chunks=1))
    rows = Batch(decode_rows=1, decode_context=1, sampled_rows=1)
    deep = Batch(decode_rows=1, decode_context=1 + (1 << 20), sampled_rows=1)
    pairs = 1 << 32
    attended = clock.seconds(Batch(prefill_tokens=budget, prefill_chunks=1, prefill_pairs=pairs))
    return ReplicaCost(
        token_s=full / budget,
        kv_s=(clock.seconds(deep) - clock.seconds(rows)) / (1 << 20),
        pair_s=(attended - full) / pairs,
        full_s=full,
        step_s=clock.seconds(rows),
    )


MISS = 0.002
"""Share of requests that queueing alone may make late: the rest of the 1 % is for surges."""
SLOW = 0.01
"""Share of requests that prompts beside them may make too slow, by `slow_share`. Then half as many are slow in the
engine model with the lengths of the Azure trace, up to half more with exponential ones."""
LEAST_FILL, FULLEST = 0.3, 0.98


def wait_slack(cost: ReplicaCost, mix: RequestMix, slo_ttft_s: float) -> float:
    """Seconds that a request may wait before its prompt, one deviation longer than the mean; may be below 0."""
    return slo_ttft_s - cost.prefill_s(mix.prompt * (1 + math.sqrt(mix.prompt_cv2)))


def fill_limit(
    cost: ReplicaCost, mix: RequestMix, replicas: int, slo_ttft_s: float, slo_tpot_s: float | None = None
) -> float:
    """Largest mean load of a replica (0 to 1) at which chance makes few first tokens late and few requests slow."""
    fill = min(ttft_fill(cost, mix, replicas, slo_ttft_s), tpot_fill(cost, mix, replicas, slo_tpot_s))
    return min(FULLEST, max(LEAST_FILL, fill))


def ttft_fill(cost: ReplicaCost, mix: RequestMix, replicas: int, slo_ttft_s: float) -> float:
    """The load at which waiting makes the share `MISS` of requests late."""
    service = max(cost.request_s(mix.prompt, mix.output), 1e-6)
    slack = wait_slack(cost, mix, slo_ttft_s)
    if slack <= 0:
        return LEAST_FILL
    spread = service * (1 + mix.prompt_cv2) / 2 / max(1, replicas)
    return slack / (slack + spread * -math.log(MISS))


def tpot_fill(cost: ReplicaCost, mix: RequestMix, replicas: int, slo_tpot_s: float | None) -> float:
    """The load at which the share `SLOW` of requests is slow; 1 without a limit a token."""
    if slo_tpot_s is None or slow_share(cost, mix, replicas, slo_tpot_s, 1.0) <= SLOW:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(10):
        middle = (low + high) / 2
        if slow_share(cost, mix, replicas, slo_tpot_s, middle) <= SLOW:
            low = middle
        else:
            high = middle
    return low


def slow_share(cost: ReplicaCost, mix: RequestMix, replicas: int, slo_tpot_s: float, load: float) -> float:
    """Share of requests whose tokens take longer than `slo_tpot_s` in the mean, at `load` (0 to 1) a replica.

    In the time `X` that its tokens may take prompts worth `A` come to the request's replica, of mean `busy X` and, on
    `n` replicas that share them evenly, variance `busy X S (1 + cv^2) / n` (compound Poisson). Steps with prompts still
    give it a token each, so it is slow when `A > room X`. Over exponential numbers of tokens the normal tail is
    `(1 - sqrt(y / (2 + y))) / 2` with `y` the squared distance in deviations at the mean number.
    """
    request, prefill, tokens = cost.request_s(mix.prompt, mix.output), cost.prefill_s(mix.prompt), mix.output - 1
    if min(request, prefill, tokens, load) <= 0:
        return 0.0
    busy = load * prefill / request
    reading = load * slo_tpot_s * mix.output * (mix.prompt + mix.output / 2) * cost.kv_s / request
    step, full = cost.step_s + reading, cost.full_s + reading
    if full <= slo_tpot_s:
        return 0.0
    room = (1 - step / slo_tpot_s) / (1 - step / full) if step < full else 0.0
    if room <= busy:
        return 1.0
    spread = prefill * (1 + mix.prompt_cv2) / max(1, replicas)
    distance = slo_tpot_s * tokens * (room - busy) ** 2 / (spread * busy)
    return (1 - math.sqrt(distance / (2 + distance))) / 2


def replicas_for(
    load: float, cost: ReplicaCost, mix: RequestMix, slo_ttft_s: float, slo_tpot_s: float | None = None
) -> int:
    """The fewest replicas that carry `load` with none fuller than `fill_limit` of that very number."""
    if load <= 1e-9:
        return 0
    numbers = range(max(1, math.ceil(load - 1e-9)), math.ceil(load / LEAST_FILL) + 1)
    at = bisect_left(numbers, load - 1e-9, key=lambda n: n * fill_limit(cost, mix, n, slo_ttft_s, slo_tpot_s))
    return numbers[min(at, len(numbers) - 1)]
