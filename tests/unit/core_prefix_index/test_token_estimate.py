import pytest

from tonnage_core.prefix_index.token_estimate import DEFAULT_BYTES_PER_TOKEN, BytesPerToken


def test_the_ratio_is_the_default_until_an_answer_says_better() -> None:
    estimate = BytesPerToken()
    assert estimate.ratio("m") == DEFAULT_BYTES_PER_TOKEN
    estimate.learn("m", 6000, 1000)
    assert estimate.ratio("m") == 6.0
    assert estimate.known("m") and not estimate.known("other")


def test_the_ratio_follows_the_mean_of_what_is_seen() -> None:
    estimate = BytesPerToken()
    for number in range(400):
        estimate.learn("m", 1000 * (4 if number % 2 else 6), 1000)
    assert estimate.ratio("m") == pytest.approx(5.0, abs=0.2)


def test_short_prompts_and_nonsense_teach_nothing() -> None:
    estimate = BytesPerToken()
    estimate.learn("m", 5, 20)
    estimate.learn("m", 0, 1000)
    assert not estimate.known("m")
    estimate.learn("m", 10**9, 100)
    assert estimate.ratio("m") == 64.0
