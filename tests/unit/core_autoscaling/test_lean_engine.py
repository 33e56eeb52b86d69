"""The lean engine against the engine model, prefix cache off: equal requests, nearly equal times."""

import random
from itertools import pairwise

import pytest

from tonnage_core.autoscaling.simulation.arrivals import multiplied
from tonnage_core.autoscaling.simulation.lean_engine import Job, LeanEngine
from tonnage_core.engine.batch import Batch
from tonnage_core.engine.engine import Engine
from tonnage_core.engine.types import EngineConfig, EngineRequest
from tonnage_core.errors import BadInputError
from tonnage_core.slo import percentile
from tonnage_core.traces import TraceRequest

CONFIG = EngineConfig(
    num_blocks=20_001, max_model_len=32_768, max_num_batched_tokens=512, max_num_seqs=256, enable_prefix_caching=False
)


class Clock:
    """Step times of about an 8B model on one H100."""

    def seconds(self, batch: Batch) -> float:
        """Weights or products, attention, a fixed cost."""
        tokens = batch.decode_rows + batch.prefill_tokens
        return max(6e-3, tokens * 2.4e-5) + 1.7e-3 + batch.decode_context * 5.2e-8 + batch.prefill_pairs * 9e-10

    def swap_seconds(self, tokens: int) -> float:
        """Nothing is swapped here."""
        return 0.0


def arrivals(rate: float, count: int, seed: int) -> list[Job]:
    """Poisson arrivals of mixed lengths."""
    rng, now, jobs = random.Random(seed), 0.0, []
    for _ in range(count):
        now += rng.expovariate(rate)
        jobs.append(Job(now, int(rng.lognormvariate(6.7, 0.8)) + 1, int(rng.lognormvariate(4.7, 0.8)) + 1))
    return jobs


@pytest.mark.parametrize("rate", [4.0, 14.0])
def test_times_are_those_of_the_engine_model(rate: float) -> None:
    jobs = arrivals(rate, 600, seed=1)
    full = Engine(CONFIG, Clock())
    ended = []
    for index, job in enumerate(jobs):
        ended += full.run_until(job.arrival_s)
        hashes = tuple(range(index * 4000, index * 4000 + job.prompt // 16))
        request = EngineRequest(
            request_id=str(index), prompt_tokens=job.prompt, output_tokens=job.output, block_hashes=hashes
        )
        full.submit(request, job.arrival_s)
    ended += full.run_until(float("inf"))
    lean = make_lean()
    for job in jobs:
        lean.submit(job)
    lean.run_until(10_000.0)
    assert len(ended) == len(lean.ended) == len(jobs)
    for percent in (50.0, 90.0, 99.0):
        theirs = percentile(sorted(one.first_token_s - one.submitted_s for one in ended if one.first_token_s), percent)
        ours = percentile(sorted(job.ttft_s for job in lean.ended), percent)
        assert ours == pytest.approx(theirs, rel=0.03)
        last = percentile(sorted(one.finished_s for one in ended), percent)
        assert percentile(sorted(job.last_s for job in lean.ended), percent) == pytest.approx(last, rel=0.01)


def make_lean(kv_tokens: int = 320_000) -> LeanEngine:
    return LeanEngine(Clock(), budget=512, kv_tokens=kv_tokens, max_seqs=256, now_s=0.0)


def test_every_token_is_counted_once() -> None:
    lean, jobs = make_lean(), arrivals(10.0, 300, seed=2)
    for job in jobs:
        lean.submit(job)
    lean.run_until(10_000.0)
    assert lean.counters.prompt_tokens == sum(job.prompt for job in jobs)
    assert lean.counters.generation_tokens == sum(job.output for job in jobs)
    assert (lean.counters.finished, lean.counters.begun, lean.in_flight, lean.kv_usage) == (300, 300, 0, 0.0)


def test_a_prompt_waits_for_room_and_one_that_never_fits_runs_alone() -> None:
    lean = make_lean(kv_tokens=4000)
    for _ in range(4):
        lean.submit(Job(0.0, 3000, 50))
    lean.submit(Job(0.0, 9000, 5))
    lean.run_until(100.0)
    first = [job.first_s for job in lean.ended]
    assert len(lean.ended) == 5
    assert first == sorted(first)
    assert all(later.first_s >= earlier.last_s for earlier, later in pairwise(lean.ended))


def test_a_multiplied_trace_keeps_its_duration_and_its_course() -> None:
    trace = [TraceRequest(n, n * 1.0 if n < 50 else 50 + (n - 50) * 0.25, 100, 10, ()) for n in range(250)]
    jobs = multiplied(trace, 3.5, random.Random(0))
    assert len(jobs) == pytest.approx(250 * 3.5, rel=0.1)
    assert jobs == sorted(jobs, key=lambda job: job.arrival_s)
    slow = sum(job.arrival_s < 50 for job in jobs)
    assert slow == pytest.approx(50 * 3.5, rel=0.2)
    assert jobs[-1].arrival_s <= trace[-1].arrival_s + 1
    assert {job.prompt for job in multiplied(trace, 1.0, random.Random(0), max_input=60)} == {60}
    with pytest.raises(BadInputError, match="above 0"):
        multiplied(trace, 0.0, random.Random(0))
