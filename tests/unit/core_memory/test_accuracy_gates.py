"""The planner against public measurements: the gates of the memory model, on the copy in tests/golden/planner."""

import csv
from pathlib import Path
from typing import Any

import pytest

from tonnage_core.memory.accuracy import Answer, Case, accuracy_document, evaluate
from tonnage_core.memory.leave_out import leave_one_model_out
from tonnage_core.memory.truth import TruthRow, truth_row
from tonnage_runtime.catalogue import load_gpu, load_model

ROWS = Path(__file__).parents[2] / "golden" / "planner" / "memory_rows.csv"


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    with ROWS.open(newline="", encoding="utf-8") as file:
        rows = [truth_row(columns) for columns in csv.DictReader(file)]
    return [Case(row, load_model(row.config) if row.config else None, _gpu(row)) for row in rows]


def _gpu(row: TruthRow) -> Any:
    return load_gpu(row.gpu) if row.gpu else None


@pytest.fixture(scope="module")
def document(cases: list[Case]) -> dict[str, Any]:
    return accuracy_document(cases)


def _largest(document: dict[str, Any], metric: str) -> float:
    answers: list[Answer] = document["answers"]
    found = [one for one in answers if one.case.row.metric == metric and one.case.row.columns["pool_gib"]]
    assert len(found) > 20
    return max(abs(one.error_pct or 0.0) for one in found)


@pytest.mark.parametrize("metric", ["kv_cache_blocks", "kv_cache_tokens"])
def test_blocks_and_tokens_follow_from_the_pool_within_0_3_percent(document: dict[str, Any], metric: str) -> None:
    assert _largest(document, metric) < 0.3


def test_concurrency_follows_from_the_pool_within_0_5_percent_or_its_own_rounding(document: dict[str, Any]) -> None:
    for one in document["answers"]:
        if one.case.row.metric == "max_concurrency_x" and one.case.row.columns["pool_gib"]:
            truth = one.case.row.value
            assert abs((one.predicted or 0.0) - truth) <= max(0.005, 0.005 * truth), one.case.row.id


def test_bytes_of_a_token_are_exact(document: dict[str, Any]) -> None:
    assert document["summary"]["kv_bytes_per_token"]["n"] == 24
    assert document["summary"]["kv_bytes_per_token"]["max_pct"] == 0.0


def test_weights_from_flags_are_within_half_a_percent_on_average(document: dict[str, Any]) -> None:
    assert document["from_flags"]["weight_gib"]["n"] == 35
    assert document["from_flags"]["weight_gib"]["mae_pct"] <= 0.5


def test_the_pool_from_flags_is_within_2_percent_on_average(document: dict[str, Any]) -> None:
    assert document["from_flags"]["kv_cache_gib"]["n"] == 37
    assert document["from_flags"]["kv_cache_gib"]["mae_pct"] <= 2.0


def test_concurrency_from_flags_is_within_3_percent_on_average(document: dict[str, Any]) -> None:
    assert document["from_flags"]["max_concurrency_x"]["n"] == 34
    assert document["from_flags"]["max_concurrency_x"]["mae_pct"] <= 3.0


def test_no_boot_that_failed_is_said_to_fit_and_none_that_started_is_refused(document: dict[str, Any]) -> None:
    assert document["start"] == {"start": 37, "fail": 9}
    assert document["false_fit_ids"] == []
    assert document["false_refusal_ids"] == []


def test_pools_of_models_the_constants_never_saw_are_within_4_percent(cases: list[Case]) -> None:
    errors = [abs(error) for _, error in leave_one_model_out(cases)]
    assert len(errors) == 37
    assert sum(errors) / len(errors) <= 4.0


@pytest.mark.parametrize("metric", ["weight_gib", "activation_peak_gib", "kv_cache_gib", "max_concurrency_x"])
def test_intervals_hold_the_truth_four_times_in_five_or_more(document: dict[str, Any], metric: str) -> None:
    assert document["from_flags"][metric]["coverage90"] >= 0.8


def test_every_scored_row_is_answered(document: dict[str, Any]) -> None:
    assert document["answered"] == document["rows"]
    assert document["not_answered"] == {}


def test_boot_ldo1_adds_up_to_0_95_of_its_card(cases: list[Case]) -> None:
    parts = {"weight_gib", "activation_peak_gib", "non_torch_gib", "kv_cache_gib"}
    found = [case.row for case in cases if case.row.id.startswith("LDO1.") and case.row.metric in parts]
    assert sum(row.value or 0.0 for row in found) / (found[0].number("gpu_mem_gib") or 0.0) == pytest.approx(
        0.95, abs=1e-3
    )


def test_the_pool_column_is_not_needed_for_rows_that_name_a_card(cases: list[Case]) -> None:
    pooled = [case for case in cases if case.row.metric == "kv_cache_blocks" and case.gpu is not None]
    from_flags = evaluate(pooled, use_pool=False)
    assert all(one.predicted for one in from_flags)
    assert from_flags != evaluate(pooled)
