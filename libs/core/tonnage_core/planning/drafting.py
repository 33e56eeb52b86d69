"""Step times under speculative decoding: what a token costs when a pass yields several."""

from dataclasses import dataclass, replace

from tonnage_core.engine.batch import Batch, StepClock
from tonnage_core.parallelism import Layout
from tonnage_core.planning.candidate import Sized
from tonnage_core.planning.space import drafter_of
from tonnage_core.planning.spec import Draft
from tonnage_core.prediction.operators import operators_of
from tonnage_core.prediction.step_model import StepModel
from tonnage_core.speculative import Choice, Drafter, best_choice, expected_tokens


def draft_seconds(model: StepModel, drafter: Drafter, drafted: int, rows: float) -> float:
    """Time to draft: what the drafter reads at the target's bandwidth, or computes at its peak, and its kernels."""
    parameters = drafter.draft_parameters(drafted) / model.operators.layout.tp
    if not parameters:
        return 0.0
    gpu, rate = model.gpu, model.coefficients
    read = parameters * 2 / (gpu.hbm_gbps * 1e9 * rate.memory)
    compute = rows * parameters * 2 / (gpu.bf16_tflops * 1e12 * rate.gemm)
    return max(read, compute) + rate.layer_s * (drafted if drafter.serial else 1)


@dataclass(frozen=True, slots=True)
class Drafting:
    """A `StepClock` whose decode rows cost what one token of them costs: (draft + verify) / expected tokens.

    The engine model makes one token a step, so a pass that yields E tokens is E steps of an E-th of its time.
    """

    plain: StepClock
    model: StepModel
    drafter: Drafter
    drafted: int
    tokens: float
    own: StepModel | None = None
    """Steps of a draft model of its own, which also takes every prompt; None: a head on the target, or no model."""

    def seconds(self, batch: Batch) -> float:
        """Time of one iteration."""
        whole = self.plain.seconds(batch) + self._prompts(batch)
        if not batch.decode_rows:
            return whole
        decode = Batch(
            decode_rows=batch.decode_rows, decode_context=batch.decode_context, sampled_rows=batch.decode_rows
        )
        rows = batch.decode_rows * (self.drafted + 1)
        verify = replace(decode, decode_rows=rows, sampled_rows=rows, decode_context=batch.decode_context)
        if self.own is None:
            draft = draft_seconds(self.model, self.drafter, self.drafted, batch.decode_rows)
        else:
            draft = self.drafted * self.own.seconds(decode)
        beside = whole - self.plain.seconds(decode)
        return beside + (draft + self.plain.seconds(verify)) / self.tokens

    def _prompts(self, batch: Batch) -> float:
        if self.own is None or not batch.prefill_tokens:
            return 0.0
        return self.own.seconds(
            Batch(
                prefill_tokens=batch.prefill_tokens,
                prefill_context=batch.prefill_context,
                prefill_pairs=batch.prefill_pairs,
                prefill_chunks=batch.prefill_chunks,
            )
        )

    def swap_seconds(self, tokens: int) -> float:
        """Time to move KV, one way."""
        return self.plain.swap_seconds(tokens)


def clock_of(sized: Sized) -> StepClock:
    """The step times of a configuration, drafts included."""
    config = sized.config
    if config.draft is None:
        return sized.model
    drafter = drafter_of(sized.memory.shape, config.draft)
    tokens = expected_tokens(drafter.acceptance, config.drafted)
    return Drafting(sized.model, sized.model, drafter, config.drafted, tokens, own_steps(sized, config.draft))


def own_steps(sized: Sized, draft: Draft) -> StepModel | None:
    """Step times of a draft model of its own, on the target's GPUs: split as widely as it, as vLLM has it."""
    if draft.shape is None:
        return None
    target = sized.model
    layout = Layout(target.operators.layout.tp, dp=target.operators.layout.dp)
    operators = operators_of(draft.shape, layout, sized.config.kv_dtype)
    return replace(target, operators=operators)


def draft_choice(sized: Sized, draft: Draft, rows: float, context: float) -> Choice:
    """The best draft length at a batch of `rows` requests of `context` tokens, and its speed-up."""
    model, drafter, own = sized.model, drafter_of(sized.memory.shape, draft), own_steps(sized, draft)
    alone = None if own is None else own.mixed_step_s(rows, rows * context, 0, 0)
    return best_choice(
        drafter,
        lambda places: model.mixed_step_s(rows * places, rows * context, 0, 0),
        lambda drafted: draft_seconds(model, drafter, drafted, rows) if alone is None else drafted * alone,
    )
