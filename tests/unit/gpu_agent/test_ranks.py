"""Probes over several ranks, rehearsed on the host: two processes over gloo, kernels in Triton's interpreter."""

import sys

import pytest

from tonnage_core.gpu_health.measurement import PointStatus
from tonnage_core.gpu_health.profile import curves

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tonnage_gpu_agent.probes import collectives, tensor_parallel  # noqa: E402
from tonnage_gpu_agent.probes.context import sampler  # noqa: E402
from tonnage_gpu_agent.probes.llama_tp import LLAMA_70B, shard_shape  # noqa: E402
from tonnage_gpu_agent.probes.rank_world import WorldError, rank_points  # noqa: E402


def test_two_ranks_add_gather_scatter_and_swap_exactly() -> None:
    points = [collectives._point(found, 2) for found in rank_points(collectives.RANK_MODULE, 2, 240, "host")]
    assert {point.name for point in points} == {"allreduce", "allgather", "reducescatter", "alltoall", "sendrecv"}
    assert all(point.status is PointStatus.OK and float(point.params["us"]) > 0 for point in points), points
    assert {entry["bytes"] for entry in curves(points)["allreduce"]} == {1024.0, 65536.0}


def test_a_wrong_sum_at_any_rank_is_a_wrong_point() -> None:
    found = {"name": "allreduce", "bytes": 1024, "mode": "graph", "us": 3.0, "wrong": 2}
    assert collectives._point(found, 2).status is PointStatus.WRONG


def test_peer_memory_that_is_not_shared_is_unsupported_and_not_an_error() -> None:
    found = {"name": "allreduce_one_shot", "bytes": 1024, "mode": "graph", "why": "no peer access"}
    point = collectives._point(found, 2)
    assert point.status is PointStatus.UNSUPPORTED and point.detail == "no peer access"


def test_a_tensor_parallel_step_equals_the_whole_one() -> None:
    (found,) = rank_points(tensor_parallel.RANK_MODULE, 2, 240, "host")
    point = tensor_parallel._point(found, 2)
    assert point.status is PointStatus.OK
    assert point.relative_error is not None and point.relative_error < 1e-4


def test_a_rank_that_cannot_start_is_said() -> None:
    with pytest.raises(WorldError, match=r"rank . of 2 could not start: .*no_such_rank"):
        list(rank_points("tonnage_gpu_agent.probes.no_such_rank", 2, 120))


def test_without_nvidias_bindings_points_have_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert sampler("GPU-1")() == {}


def test_a_shape_that_does_not_divide_is_refused() -> None:
    assert shard_shape(LLAMA_70B, 2).kv_heads == 4
    with pytest.raises(ValueError, match="heads 64 does not divide by tp 3"):
        shard_shape(LLAMA_70B, 3)
