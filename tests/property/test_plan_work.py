"""However long answers and prompts are and however many run at once, a trial's work is bounded or refused."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tonnage_core.planning.errors import PlanSpecError
from tonnage_core.planning.lengths import Lengths
from tonnage_core.planning.plan import make_plan
from tonnage_core.planning.sampling import (
    LEAST_MEASURED,
    MEASURED,
    MOST_TOKENS,
    MOST_WORK,
    USUAL_TOKENS,
    Work,
    affordable,
    sample_for,
)
from tonnage_core.planning.spec import Lookups, read_spec
from tonnage_core.planning.traffic import Traffic
from tonnage_runtime.catalogue import load_gpu, load_model

TOKENS = st.integers(1, 10_000_000)
IN_FLIGHT = st.floats(0, 1e6)


def traffic(prompt: int, answer: int) -> Traffic:
    return Traffic(1.0, Lengths((prompt,)), Lengths((answer,)))


@given(prompt=TOKENS, answer=TOKENS, in_flight=IN_FLIGHT, measured=st.integers(1, MEASURED))
@settings(deadline=None)
def test_the_work_is_what_was_drawn_and_bounded(prompt: int, answer: int, in_flight: float, measured: int) -> None:
    asked = traffic(prompt, answer)
    sample = sample_for(asked, in_flight, measured)
    assert min(measured, LEAST_MEASURED) <= sample.measured <= measured
    assert sample.filling + sample.measured <= sample.count
    assert sample.tokens >= sample.count * answer
    if sample.tokens > MOST_TOKENS:
        with pytest.raises(PlanSpecError, match="tokens of work") as caught:
            affordable(sample, asked)
        assert "\n" not in str(caught.value)
    else:
        assert affordable(sample, asked) is sample


@given(prompt=TOKENS, answer=TOKENS, in_flight=IN_FLIGHT)
@settings(deadline=None)
def test_a_sample_shrinks_only_where_the_work_is_unusual(prompt: int, answer: int, in_flight: float) -> None:
    sample = sample_for(traffic(prompt, answer), in_flight)
    if sample.measured < MEASURED:
        assert sample.tokens + (MEASURED - sample.measured) * sample.tokens / sample.count > USUAL_TOKENS * 0.99


def test_the_sample_of_everyday_answers_is_whole() -> None:
    assert sample_for(traffic(2000, 220), 60).measured == MEASURED


def test_a_plan_ends_after_so_much_work_and_says_what_it_left_out() -> None:
    asked = {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "traffic": {"rate_rps": 12, "input_tokens": 100_000, "output_tokens": 200},
        "slo": {"ttft_ms": {"p99": 1500}, "tpot_ms": {"p99": 50}},
        "offers": [
            {"gpu": gpu, "usd_per_hour": 1 + place, "max": 64}
            for place, gpu in enumerate(("A100-SXM-80GB", "H100-SXM-80GB"))
        ],
    }
    # What follows the last look that was begun: two trials, of which each is bounded.
    followed: list[float] = []
    told = Work.ends

    def ends(work: Work) -> bool:
        followed.append(work.tokens)
        return told(work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Work, "ends", ends)
        document = make_plan(read_spec(asked, Lookups(load_model, load_gpu, Random)))
    assert "looks were left out" in document["method"]
    assert Work(MOST_WORK + 1).shorten(MEASURED) == LEAST_MEASURED
    assert Work(MOST_WORK).shorten(MEASURED) == MEASURED
    assert max(followed) < MOST_WORK + 2 * MOST_TOKENS
    assert document["binding"] and document["relaxations"]
