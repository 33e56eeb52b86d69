"""However long answers and prompts are and however many run at once, a trial's work is bounded or refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tonnage_core.planning.errors import PlanSpecError
from tonnage_core.planning.lengths import Lengths
from tonnage_core.planning.sampling import (
    LEAST_MEASURED,
    MEASURED,
    MOST_TOKENS,
    USUAL_TOKENS,
    affordable,
    sample_for,
)
from tonnage_core.planning.traffic import Traffic

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
