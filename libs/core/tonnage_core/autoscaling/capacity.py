"""What one replica can carry, in seconds of its own time a request, and how full it may run at the SLO.

In a loaded engine every step is full: prompts and decode rows share the token budget, and each decode row reads its
context. A request then takes `(prompt + output) x token + output x context x kv + prompt^2/2 x pair` seconds of the
replica, and the sum over the requests of a second is the load in replicas. The coefficients come from the step model
that the planner predicts with; what the fleet shows corrects them (`correction.py`).

How full: the wait behind other prompts has an exponential tail in heavy traffic, `P(W > t) = rho e^(-t/w)` with
`w = rho / (1 - rho) x S (1 + cv^2) / 2` for service time `S` (Kingman's bound for Poisson arrivals), and a router that
sends each request to the least work leaves, of `n` replicas, one queue served `n` times as fast.
"""

import math
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
    )


MISS = 0.002
"""Share of requests that queueing alone may make late: the rest of the 1 % is for surges."""
FULLEST = 0.98


def wait_slack(cost: ReplicaCost, mix: RequestMix, slo_ttft_s: float) -> float:
    """Seconds that a request may wait before its prompt, one deviation longer than the mean; may be below 0."""
    return slo_ttft_s - cost.prefill_s(mix.prompt * (1 + math.sqrt(mix.prompt_cv2)))


def fill_limit(cost: ReplicaCost, mix: RequestMix, replicas: int, slo_ttft_s: float) -> float:
    """Largest mean load of a replica (0 to 1) at which waiting makes no more than the share `MISS` of requests late."""
    service = max(cost.request_s(mix.prompt, mix.output), 1e-6)
    slack = wait_slack(cost, mix, slo_ttft_s)
    if slack <= 0:
        return 0.3
    spread = service * (1 + mix.prompt_cv2) / 2 / max(1, replicas)
    load = slack / (slack + spread * -math.log(MISS))
    return min(FULLEST, max(0.3, load))
