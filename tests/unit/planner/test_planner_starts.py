"""Starts that cold-start services were told of set how far ahead the forecast looks."""

import json
from typing import Any

import pytest

from tonnage_core.autoscaling.outlook import STARTS_KEPT, OutlookState, horizon_of
from tonnage_core.autoscaling.reported_starts import told
from tonnage_planner.starts import starts_of


def start(pool: str, name: str, took: Any, first: float = 100.0) -> dict[str, Any]:
    return {"pool": pool, "name": name, "total_s": took, "spans": [{"phase": "pull", "start_s": first, "end_s": None}]}


def text(*starts: Any) -> str:
    return json.dumps({"schema": "tonnage.starts/1", "version": 1, "starts": list(starts)})


def test_a_reported_start_lengthens_the_horizon_and_is_counted_once() -> None:
    state = told(OutlookState(), {"start:a@1": 400.0})
    assert horizon_of(state.starts, 180.0) == 400.0
    assert told(state, {"start:a@1": 900.0}) is state
    many = told(state, {f"start:b@{n}": 60.0 for n in range(STARTS_KEPT)})
    assert len(many.starts) == STARTS_KEPT
    assert horizon_of(many.starts, 30.0) == 60.0


def test_the_same_pod_name_may_start_twice_and_pools_are_kept_apart() -> None:
    found = starts_of(text(start("m", "m-0", 50), start("m", "m-0", 60, first=900.0), start("other", "o", 5)))
    assert found == {"m": {"start:m-0@100": 50.0, "start:m-0@900": 60.0}, "other": {"start:o@100": 5.0}}


@pytest.mark.parametrize(
    "damage",
    [
        *(start("m", "a", took) for took in (None, 0, -3, 1e9, "7", True, float("inf"))),
        start("", "a", 5),
        {"pool": 3, "name": "a", "total_s": 5},
        {},
        7,
    ],
)
def test_a_start_that_is_not_whole_is_left_out(damage: Any) -> None:
    assert starts_of(text(damage, start("m", "good", 5))) == {"m": {"start:good@100": 5.0}}


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"schema": "tonnage.cache/1"}'])
def test_another_document_is_refused(body: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        starts_of(body)
