"""What samples say."""

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage_core import engine_text
from tonnage_sim.engine.output import LengthDraw, Output, StopRules, draw_output

LENGTHS = LengthDraw(median=50, sigma=0.7)
KEYS = [bytes([i]) * 16 for i in range(200)]


def test_lengths_scatter_about_their_median() -> None:
    lengths = [len(draw_output(key, 0, StopRules(10_000), LENGTHS).token_ids) for key in KEYS]
    assert 40 < median(lengths) < 62
    assert min(lengths) < 25 < 100 < max(lengths)


def test_an_answer_that_ends_itself_says_so_in_its_last_token() -> None:
    output = draw_output(KEYS[0], 0, StopRules(10_000), LENGTHS)
    assert output.token_ids[-1] == engine_text.END_OF_TURN
    assert (output.finish_reason, output.stop_reason) == ("stop", None)
    assert engine_text.encode(output.text) == list(output.token_ids[:-1])


def test_the_limit_cuts_what_would_be_longer() -> None:
    whole = draw_output(KEYS[0], 0, StopRules(10_000), LENGTHS)
    cut = draw_output(KEYS[0], 0, StopRules(5), LENGTHS)
    assert list(cut.token_ids) == list(whole.token_ids[:5])
    assert cut.finish_reason == "length"


def test_samples_of_one_request_differ() -> None:
    outputs = [tuple(draw_output(KEYS[0], n, StopRules(20, ignore_eos=True), LENGTHS).token_ids) for n in range(20)]
    assert len(set(outputs)) == 20


@given(st.integers(0, 199), st.integers(1, 60), st.integers(0, 59), st.integers(1, 12), st.booleans())
def test_a_stop_string_shows_only_where_it_may(number: int, limit: int, at: int, width: int, include: bool) -> None:
    free = draw_output(KEYS[number], 0, StopRules(limit, ignore_eos=True), LENGTHS)
    stop = free.text[at : at + width]
    if not stop:
        return
    rules = StopRules(limit, ignore_eos=True, strings=(stop,), include_string=include)
    output = draw_output(KEYS[number], 0, rules, LENGTHS)
    first = free.text.index(stop)
    assert output.text == free.text[: first + (len(stop) if include else 0)]
    assert output.stop_reason == stop
    assert len(output.token_ids) == -(-(first + len(stop)) // engine_text.WORD_CHARS)
    assert "".join(map(output.text_of, range(len(output.token_ids)))) == output.text


def test_the_earliest_stop_wins() -> None:
    free = draw_output(KEYS[0], 0, StopRules(20, ignore_eos=True), LENGTHS)
    early, late = free.text[7:11], free.text[30:34]
    rules = StopRules(20, ignore_eos=True, strings=(late, early), token_ids=frozenset({free.token_ids[9]}))
    assert draw_output(KEYS[0], 0, rules, LENGTHS).stop_reason == early


def test_a_stop_before_min_tokens_does_not_count() -> None:
    free = draw_output(KEYS[0], 0, StopRules(20, ignore_eos=True), LENGTHS)
    rules = StopRules(20, min_tokens=10, ignore_eos=True, token_ids=frozenset({free.token_ids[3]}))
    assert len(draw_output(KEYS[0], 0, rules, LENGTHS).token_ids) == 20


@pytest.mark.parametrize("sigma, expected", [(0.0, {50}), (5.0, None)])
def test_a_length_is_at_least_one_token(sigma: float, expected: set[int] | None) -> None:
    draws = {LengthDraw(50, sigma).tokens(q / 1000) for q in range(1, 1000)}
    assert min(draws) >= 1
    assert expected is None or draws == expected


def test_text_of_the_first_tokens_is_a_prefix() -> None:
    output = Output(2, lambda: engine_text.encode(" babab bobob"), visible=12, finish_reason="length")
    assert output.text_until(1) == " babab"


def test_tokens_are_made_once_and_only_when_asked_for() -> None:
    made: list[int] = []

    def draw() -> list[int]:
        made.append(1)
        return [300, 301]

    output = Output(2, draw, visible=12, finish_reason="length")
    assert (output.length, made) == (2, [])
    assert (output.token_ids[1], output.text, made) == (301, engine_text.decode([300, 301]), [1])
