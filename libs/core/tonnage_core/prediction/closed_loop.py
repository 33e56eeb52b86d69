"""The steady state of a closed loop: `concurrency` requests in flight, each replaced when it ends.

With X requests a second, each bringing a prompt that takes D seconds beyond the decode step it shares, a share X D of
time goes to prompts, so tokens are 1 / (1 - X D) decode steps apart, and X = running / (TTFT + tokens x TPOT) by
Little's law. Requests beyond what the engine runs at once wait for the time that the others take to leave.
"""

from dataclasses import dataclass

from tonnage_core.prediction.step_model import StepModel

ROUNDS = 24
"""Fixed-point iterations, damped by half; the first digits settle after ten."""
BUSIEST = 0.95
"""Share of time that prompts can take at most."""


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop: `isl` tokens in (`prefix` cached), `osl` out, `clients` in flight, `slots` of them running."""

    isl: float
    osl: float
    prefix: float
    clients: float
    slots: float
    waves: float


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

    def output_tokens_per_s(self, osl: float) -> float:
        """Tokens out of the replica."""
        return self.requests_per_s * osl


def steady_state(model: StepModel, load: Load) -> SteadyState:
    """Means of TTFT and TPOT over a run of `waves` requests a slot that starts with all slots at once."""
    running = max(1.0, min(load.clients, load.slots))
    fresh, steps = load.isl - load.prefix, max(load.osl - 1, 0.0)
    context = load.isl + load.osl / 2
    alone = prompt_seconds(model, fresh, load.prefix, 0.0, context)
    ttft, tpot = alone, model.decode_step_s(running, context)
    decoding, rate, extra, prompt, busy, wait = running, 0.0, 0.0, alone, 0.0, 0.0
    for _ in range(ROUNDS):
        life = ttft + steps * tpot
        decoding = max(min(1.0, running), running * steps * tpot / life) if steps else 0.0
        rate = running / life
        step = model.decode_step_s(decoding, context) if decoding else 0.0
        prompt = prompt_seconds(model, fresh, load.prefix, decoding, context)
        extra = max(0.0, prompt - step * chunks(model, fresh))
        busy = min(BUSIEST, rate * extra * (running - 1) / running)
        wait = step / 2 + busy * extra / (2 * (1 - busy))
        tpot = (tpot + step / (1 - busy)) / 2
        ttft = (ttft + prompt + wait + model.coefficients.request_s) / 2
    burst = (running - 1) / 2 * burst_seconds(model, fresh, load.prefix, running)
    beyond = max(0.0, load.clients - running)
    queue = beyond / rate / 1.0 if rate else 0.0
    late = model.coefficients.burst * burst
    return SteadyState(ttft + late + queue, tpot, rate, step, prompt, late, queue, wait, decoding, busy)


def chunks(model: StepModel, fresh: float) -> float:
    """Steps a prompt is spread over."""
    return max(1.0, -(-fresh // model.chunk))


def prompt_seconds(model: StepModel, fresh: float, prefix: float, decoding: float, context: float) -> float:
    """All steps of one prompt, each with `decoding` rows beside its chunk."""
    count = chunks(model, fresh)
    part = fresh / count
    return sum(
        model.mixed_step_s(decoding, decoding * context, part, prefix + index * part) for index in range(int(count))
    )


def burst_seconds(model: StepModel, fresh: float, prefix: float, running: float) -> float:
    """Seconds a prompt when many wait: steps are filled to the chunk budget."""
    together = max(1.0, min(running, model.chunk // max(1.0, fresh)))
    return prompt_seconds(model, fresh * together, prefix, 0.0, 0.0) / together
