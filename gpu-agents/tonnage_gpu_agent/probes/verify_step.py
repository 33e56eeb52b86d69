"""A speculative verify step (one token and k drafts a sequence) beside the decode step it replaces."""

from collections.abc import Iterator

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.probes.decode_step import LIMIT, DecodeStepProbe, pool_bytes, shape_for, step_error
from tonnage_gpu_agent.probes.llama import DecodeStep, KvPool, Weights
from tonnage_gpu_agent.probes.probe import Bench, duration, judged

BATCHES = (1, 8, 32, 64)
DRAFTS = (3, 7)
CONTEXT = 4096


class VerifyStep:
    """The guide's claim that k extra tokens cost almost nothing holds while the step is memory-bound."""

    def unsupported(self, bench: Bench) -> str | None:
        """What the decode step needs."""
        return DecodeStepProbe().unsupported(bench)

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """Cost relative to the decode step of the same batch and context."""
        error = step_error(bench, q_tokens=1 + DRAFTS[0])
        shape = shape_for(bench)
        weights = Weights(bench, shape)
        context = bench.sized(CONTEXT, 64)
        pool = KvPool(bench, shape, min(pool_bytes(bench, shape), 64 * context * shape.layers * shape.kv_bytes))
        for batch in BATCHES[: 1 if bench.rehearsal else None]:
            if pool.groups(batch, context) == 0:
                continue
            plain = bench.timer.graph([DecodeStep(bench, weights, pool, batch, context)], budget_ms=40)
            for drafts in DRAFTS:
                step = DecodeStep(bench, weights, pool, batch, context, 1 + drafts)
                timing = bench.timer.graph([step], budget_ms=40)
                point = duration(
                    "verify_step",
                    timing,
                    flops=step.flops(context),
                    nbytes=step.nbytes(context),
                    model=shape.name,
                    batch=batch,
                    context=context,
                    drafts=drafts,
                    decode_us=plain.us,
                    cost=timing.us / plain.us,
                )
                yield judged(point, error, LIMIT)


probe = VerifyStep()
