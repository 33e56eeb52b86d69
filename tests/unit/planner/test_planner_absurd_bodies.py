"""What would break later answers is refused when it is sent."""

from typing import Any

import pytest

from tonnage_core.errors import BadInputError
from tonnage_planner.library import Library, read_points
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.memory_store import MemoryStore

PROFILE: dict[str, Any] = {"schema": "tonnage.gpu_profile/1", "node": "n1", "index": 0, "name": "H100-SXM-80GB"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"context": {"power_w": float("nan")}}, "holds NaN"),
        ({"context": {"power_w": float("inf")}}, "holds NaN"),
        ({"product": "\ud800"}, "not Unicode"),
        ({"node": "\ud800"}, "has a node"),
        ({"node": "a/b"}, "has a node"),
        ({"index": -1}, "an index"),
        ({"index": 10**300}, "an index"),
        ({"index": True}, "an index"),
    ],
)
async def test_a_profile_that_could_not_be_answered_again_is_refused_and_changes_nothing(
    changes: dict[str, Any], words: str
) -> None:
    library = Library(MemoryStore(SystemClock()), profiles=3, points=3)
    await library.add_profile(PROFILE)
    with pytest.raises(BadInputError, match=words):
        await library.add_profile(PROFILE | changes)
    assert await library.profiles() == {"n1/0": PROFILE}


def test_a_column_given_twice_is_refused_rather_than_one_of_them_dropped() -> None:
    with pytest.raises(BadInputError, match="names 'id' twice"):
        read_points("id,metric,value,id\na,ttft_ms,1,b\n")


def test_an_error_names_the_line_of_the_file_blank_ones_counted() -> None:
    with pytest.raises(BadInputError, match="line 4: value is 'nan'"):
        read_points("id,metric,value\n\na,ttft_ms,1\nb,ttft_ms,nan\n")
