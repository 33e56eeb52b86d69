"""Drafts: bounds, the inverse of the acceptance formula, and why a full batch stops them paying."""

import pytest

from tonnage_core import speculative as spec
from tonnage_core.errors import BadInputError


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("drafted", [0, 1, 5])
def test_a_pass_yields_between_one_and_k_plus_one_tokens(acceptance: float, drafted: int) -> None:
    tokens = spec.expected_tokens(acceptance, drafted)
    assert 1 <= tokens <= drafted + 1
    assert spec.expected_tokens_at([acceptance] * drafted) == pytest.approx(tokens)
    assert drafted == 0 or spec.acceptance_of(tokens, drafted) == pytest.approx(acceptance, abs=1e-6)


def test_heads_that_get_worse_yield_less_than_equal_ones() -> None:
    assert spec.expected_tokens_at([0.8, 0.6, 0.4]) == pytest.approx(1 + 0.8 + 0.48 + 0.192)
    assert spec.tree_acceptance(0.5, 3) == pytest.approx(0.875)


def test_the_best_draft_grows_with_acceptance_and_is_none_where_drafting_costs_more() -> None:
    low, high = spec.best_draft(0.5, 0.1)[0], spec.best_draft(0.9, 0.1)[0]
    assert 1 <= low < high
    assert spec.best_draft(0.2, 0.5) == (0, 1.0)
    for acceptance in (0.5, 0.7, 0.9):
        drafted, gain = spec.best_draft(acceptance, 0.1)
        assert gain == max(spec.speedup(acceptance, k, 0.1) for k in range(1, 17))
        assert gain == spec.speedup(acceptance, drafted, 0.1)


def test_verification_that_is_free_pays_and_one_limited_by_compute_does_not() -> None:
    drafter = spec.draft_model(1e9, 0.8)
    memory_bound = spec.best_choice(drafter, lambda places: 0.02, lambda drafted: drafted * 0.002)
    compute_bound = spec.best_choice(drafter, lambda places: 0.02 * places, lambda drafted: drafted * 0.002)
    assert memory_bound.speedup > 2
    assert memory_bound.tokens_per_pass == pytest.approx(spec.expected_tokens(0.8, memory_bound.drafted))
    assert (compute_bound.drafted, compute_bound.speedup) == (0, 1.0)


def test_what_each_drafter_reads() -> None:
    assert spec.ngram().draft_parameters(5) == 0
    assert spec.draft_model(1e9).draft_parameters(5) == 5e9
    assert spec.medusa(4096, 128256).draft_parameters(3) == 3 * (4096 * 4096 + 4096 * 128256)
    assert spec.eagle(2e8, 4096).draft_parameters(2) == 2 * (2e8 + 2 * 4096 * 4096)


def test_impossible_numbers_are_refused_by_name() -> None:
    with pytest.raises(BadInputError, match=r"acceptance is 1\.2"):
        spec.expected_tokens(1.2, 3)
    with pytest.raises(BadInputError, match="it must be 1 to 4"):
        spec.acceptance_of(5.0, 3)
    with pytest.raises(BadInputError, match="-1 drafted tokens"):
        spec.expected_tokens(0.5, -1)
