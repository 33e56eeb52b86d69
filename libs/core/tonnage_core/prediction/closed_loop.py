"""The steady state of a closed loop: `concurrency` requests in flight, each replaced when it ends.

A request lives for L = TTFT + (tokens - 1) x TPOT, and by Little's law running / L requests start a second. Each brings
a prompt that takes D seconds beyond the decode steps it shares, so the others' prompts take a share a / L of the time
with a = (running - 1) x D, and tokens stand step / (1 - a / L) apart. Put together, L is the larger root of
L^2 - (TTFT + a + S) L + TTFT x a = 0, with S the decode steps of one request. Requests beyond what the engine runs at
once wait until others leave.
"""

from dataclasses import dataclass
from math import sqrt

from tonnage_core.prediction.step_model import StepModel

ROUNDS = 5
"""Rows that decode depend a little on the answer: the change is below 0.1 % after four rounds."""
FITTED_WAVES = 10
"""Waves that the `burst` coefficient is fitted for: the rows' clients do not say how many they sent."""
BUSIEST = 0.97
"""Share of time that others' prompts can take at most."""


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop: `isl` tokens in (`prefix` cached), `osl` out, `clients` in flight, `slots` of them running.

    `waves`: requests that a client sends one after another. All clients start together; later waves come spread out
    when lengths differ. `spread`: width of the range of output lengths over their mean, 0 when all are alike.
    `hold_steps`: decode steps that a busy engine lets a new prompt wait on average before it looks at it.
    """

    isl: float
    osl: float
    prefix: float
    clients: float
    slots: float
    waves: float = 10
    spread: float = 0.2
    hold_steps: float = 0

    @property
    def running(self) -> float:
        """Requests that run at once."""
        return max(1.0, min(self.clients, self.slots))

    @property
    def fresh(self) -> float:
        """Prompt tokens to compute: at least one, whose logits give the first token."""
        return max(1.0, self.isl - self.prefix)

    @property
    def context(self) -> float:
        """Mean tokens of a sequence while it decodes."""
        return self.isl + self.osl / 2


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Seconds, requests a second, rows. `queue_s` is the wait of requests beyond `slots`, part of `ttft_s`."""

    ttft_s: float
    tpot_s: float
    requests_per_s: float
    decode_step_s: float
    prompt_s: float
    burst_s: float
    queue_s: float
    wait_s: float
    decoding: float
    prompt_share: float


def steady_state(model: StepModel, load: Load) -> SteadyState:
    """Means of TTFT and TPOT over a run that starts with all clients at once."""
    if model.prefill_first and load.spread == 0:
        return _in_step(model, load)
    running, steps, fixed = load.running, max(load.osl - 1, 0.0), model.coefficients.request_s
    decoding, wait, held = running, 0.0, 0.0
    for _ in range(ROUNDS):
        step = model.decode_step_s(decoding, load.context)
        prompt = prompt_seconds(model, load, decoding)
        extra = max(0.0, prompt - step * chunks(model, load.fresh))
        first, others, own = prompt + wait + held + fixed, (running - 1) * extra, steps * step
        total = first + others + own
        life = (total + sqrt(max(0.0, total * total - 4 * first * others))) / 2
        busy = min(BUSIEST, others / life)
        held = _held_s(model, load, step, life)
        wait = step * model.coefficients.wait_steps + busy * extra / (2 * (1 - busy))
        decoding = max(min(1.0, running), running * (life - first) / life)
    late = _burst_share(model, load) * (running - 1) / 2 * burst_seconds(model, load)
    queue = max(0.0, load.clients - running) * life / running
    ttft = first + late + queue
    return SteadyState(ttft, step / (1 - busy), running / life, step, prompt, late, queue, wait + held, decoding, busy)


def _in_step(model: StepModel, load: Load) -> SteadyState:
    """Prompts before decodes and equal lengths: all requests of a wave end together, so every wave is a burst.

    A first token comes after half of the wave's prompts on average, and its request then waits for the other half.
    """
    running, steps = load.running, max(load.osl - 1, 1.0)
    step, alone = model.decode_step_s(running, load.context), burst_seconds(model, load)
    half = (running - 1) / 2 * alone
    life = running * alone + steps * step + model.coefficients.request_s
    queue = max(0.0, load.clients - running) * life / running
    ttft = model.coefficients.request_s + alone + half + queue
    share = running * alone / life
    return SteadyState(ttft, step + half / steps, running / life, step, alone, half, queue, 0.0, running, share)


def _held_s(model: StepModel, load: Load, step: float, life: float) -> float:
    """Seconds a prompt is held back, and those of half of the prompts that came meanwhile and run with it. An engine
    that serves nobody else looks at once."""
    if load.running <= 1 or not load.hold_steps:
        return 0.0
    held = load.hold_steps * step
    together = (load.running - 1) * min(1.0, 2 * held / life)
    return held + together / 2 * burst_seconds(model, load)


def _burst_share(model: StepModel, load: Load) -> float:
    rate = model.coefficients
    return min(1.0, (rate.burst if load.spread else rate.burst_alike) * FITTED_WAVES / load.waves)


def chunks(model: StepModel, fresh: float) -> float:
    """Steps a prompt is spread over."""
    return max(1.0, -(-fresh // model.chunk))


def prompt_seconds(model: StepModel, load: Load, decoding: float) -> float:
    """All steps of one prompt, each with `decoding` rows beside its chunk."""
    count = chunks(model, load.fresh)
    part = load.fresh / count
    before = load.prefix + (load.fresh - part) / 2
    return count * model.mixed_step_s(decoding, decoding * load.context, part, before)


def burst_seconds(model: StepModel, load: Load) -> float:
    """Seconds a prompt when many wait: each step is filled to the chunk budget."""
    fresh = load.fresh
    if fresh >= model.chunk:
        return prompt_seconds(model, load, 0.0)
    together = max(1.0, min(load.running, model.chunk // fresh))
    # Prompts attend to their own tokens only: the pairs of one, as many times as there are prompts.
    return model.mixed_step_s(0, 0, fresh * together, load.prefix - fresh * (together - 1) / 2) / together
