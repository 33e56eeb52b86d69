"""The simulated engine's tokenizer."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage_core import engine_text as text

word_ids = st.lists(st.integers(text.WORD_BASE, text.TOKENS - 1), max_size=40)
plain_text = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60)


def test_the_vocabulary_is_all_bytes_and_65536_distinct_words() -> None:
    words = {text.word(i) for i in range(text.WORD_BASE, text.TOKENS)}
    assert text.TOKENS == 65792
    assert len(words) == 65536
    assert {len(w) for w in words} == {6}


@given(word_ids)
def test_word_ids_survive_the_trip_through_text(ids: list[int]) -> None:
    assert text.encode(text.decode(ids)) == ids


@given(plain_text)
def test_any_text_survives_the_trip_through_ids(value: str) -> None:
    assert text.decode(text.encode(value)) == value


@given(plain_text, word_ids, plain_text)
def test_text_extended_after_a_space_keeps_its_tokens(first: str, ids: list[int], last: str) -> None:
    extension = text.decode(ids) + " " + last
    assert text.encode(first + extension) == text.encode(first) + text.encode(extension)


def test_a_word_with_letters_after_it_is_the_word_and_bytes() -> None:
    babab = text.encode(" babab")
    assert len(babab) == 1
    assert text.encode(" bababx") == [*babab, ord("x")]
    assert text.encode("babab") == list(b"babab")


@given(plain_text)
def test_no_text_encodes_to_a_special_token(value: str) -> None:
    assert not text.SPECIAL.intersection(text.encode(value))


def test_special_tokens_have_no_text() -> None:
    assert text.decode([text.BOS, 300, text.END_OF_TURN]) == text.word(300)


def test_lone_surrogates_encode_without_an_error() -> None:
    assert text.encode("\ud800") == [0xED, 0xA0, 0x80]


@pytest.mark.parametrize("bad", [-1, text.TOKENS])
def test_an_id_outside_the_vocabulary_is_named(bad: int) -> None:
    with pytest.raises(text.TokenRangeError, match=f"token id {bad} is out of vocabulary"):
        text.decode([300, bad])


def test_twelve_thousand_words_encode_as_twelve_thousand_tokens() -> None:
    rng = random.Random(1)
    ids = [rng.randrange(text.WORD_BASE, text.TOKENS) for _ in range(12_000)]
    assert text.encode(text.decode(ids)) == ids
