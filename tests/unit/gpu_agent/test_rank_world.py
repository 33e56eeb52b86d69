"""Ranks that fail, hang or are killed: rank 0 must not wait for a peer that is gone, and what it printed is kept."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tonnage_gpu_agent.probes.rank_world import WorldError, rank_points

POINT = "import json, os, signal, sys, time\nfolder, world, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])\n"
POINT += "def point(n): print(json.dumps({'n': n}), flush=True)\n"
AFTER_POINT = "while rank and not os.path.getsize(folder + '/out-0'): time.sleep(0.01)\n"
"""A rank beside 0 goes on when rank 0 has printed."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`world(body, ranks, timeout_s)`: the points of ranks that run `body`, and the error in the end."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(body: str, ranks: int = 2, timeout_s: float = 60.0) -> tuple[list[dict[str, Any]], str]:
        (tmp_path / "some_rank.py").write_text(POINT + body)
        found = []
        try:
            for point in rank_points("some_rank", ranks, timeout_s):
                found.append(point)
        except WorldError as error:
            assert len(error.lines) == len(found)
            return found, str(error)
        return found, ""

    yield run


def test_only_rank_0_gives_points(world: Any) -> None:
    assert world("point(rank)", ranks=3) == ([{"n": 0}], "")


def test_a_rank_that_fails_ends_a_world_that_would_wait_for_it_and_says_why(world: Any) -> None:
    body = AFTER_POINT + "if rank: sys.exit('out of memory on GPU 1')\npoint(1); time.sleep(600)"
    assert world(body, timeout_s=500.0) == ([{"n": 1}], "rank 1 of 2 failed: out of memory on GPU 1")


def test_a_rank_that_is_killed_ends_the_world(world: Any) -> None:
    body = AFTER_POINT + "if rank: os.kill(os.getpid(), signal.SIGKILL)\npoint(1); time.sleep(600)"
    assert world(body, ranks=4, timeout_s=500.0)[1].endswith("failed: exit code -9")


def test_a_rank_that_cannot_start_is_told_from_one_that_fails_later(world: Any) -> None:
    found, why = world("raise RuntimeError('no device')")
    assert not found
    assert why in [f"rank {rank} of 2 could not start: RuntimeError: no device" for rank in (0, 1)], (
        "whoever ends first"
    )


def test_ranks_that_hang_are_ended_and_keep_their_points(world: Any) -> None:
    assert world("point(7)\ntime.sleep(600)", timeout_s=10.0) == ([{"n": 7}], "2 ranks hung for 10 s")


def test_a_rank_that_prints_more_than_a_pipe_holds_does_not_block(world: Any) -> None:
    found, why = world("sys.stderr.write('x' * 300000)\nfor n in range(8000): point(n)")
    assert (len(found), why) == (8000, "")
