"""Every probe plugin keeps the interface's promises, rehearsed on the host at toy sizes."""

from collections.abc import Iterator
from importlib import import_module

import pytest
import torch

from tonnage_core.gpu_health.guide import GUIDE_RATIOS, guide_ratios
from tonnage_core.gpu_health.measurement import Measurement, PointStatus, measurement_from
from tonnage_gpu_agent.probes import PROBES, ProbeEntry, select
from tonnage_gpu_agent.probes.gemm import GemmSweep
from tonnage_gpu_agent.probes.probe import Bench, judged, relative_error
from tonnage_gpu_agent.probes.timing import HostTimer

NEEDS_A_GPU = {"gemm_fp8", "kv_allocator", "pin_cost", "p2p_copy", "collectives", "tensor_parallel"}
SLOW_IN_THE_INTERPRETER = {"decode_step", "verify_step", "decode_attention", "lora_gemm", "attention", "prefill_chunk"}
"""Their kernels have tests of their own; here they run once, by the step of one decode."""


@pytest.fixture
def bench() -> Iterator[Bench]:
    yield Bench(torch.device("cpu"), HostTimer(), torch.Generator().manual_seed(3), quick=True)


def rehearsed(entry: ProbeEntry, bench: Bench) -> list[Measurement]:
    probe = import_module(entry.module).probe
    why = probe.unsupported(bench)
    if why is not None:
        assert entry.name in NEEDS_A_GPU, why
        return []
    return list(probe.points(bench))


@pytest.mark.parametrize("entry", [p for p in PROBES if p.name not in SLOW_IN_THE_INTERPRETER], ids=lambda p: p.name)
def test_a_probe_gives_correct_counted_points_or_says_why_not(entry: ProbeEntry, bench: Bench) -> None:
    for point in rehearsed(entry, bench):
        assert point.status is PointStatus.OK or (point.status is PointStatus.UNSUPPORTED and point.detail), point
        assert measurement_from(point.document()) == point
        if point.status is PointStatus.OK:
            assert point.value is not None and point.value > 0 and point.unit
            assert point.bytes or point.flops or point.unit == "us"
            assert "us" in point.params


def test_a_decode_step_of_the_toy_model_is_right(bench: Bench) -> None:
    entry = next(p for p in PROBES if p.name == "decode_step")
    (point,) = rehearsed(entry, bench)
    assert point.status is PointStatus.OK
    assert point.relative_error is not None and point.relative_error < 1e-5


def test_a_wrong_product_is_wrong_whatever_its_speed(bench: Bench) -> None:
    def make(bench: Bench, rows: int, columns: int) -> torch.Tensor:
        return bench.normal(rows, columns, dtype=torch.float32)

    def nearly(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> object:
        torch.mm(x, w.t(), out=y)
        return y[:, 0].mul_(1.5)

    found = list(GemmSweep("gemm_test", make, nearly, torch.float32, 1e-2).run(bench))
    assert {point.status for point in found} == {PointStatus.WRONG}
    assert all(point.value for point in found)


def test_an_unwritten_element_is_wrong() -> None:
    point = judged(Measurement("x", PointStatus.OK, 1.0), relative_error(torch.tensor([torch.nan]), torch.ones(1)), 1.0)
    assert point.status is PointStatus.WRONG


def test_the_quick_suite_is_part_of_the_full_one() -> None:
    assert {p.name for p in select("quick")} < {p.name for p in select("full")}
    assert len({p.name for p in PROBES}) == len(PROBES)


def test_guide_ratios_need_their_points() -> None:
    assert all(measured is None for _, _, measured in guide_ratios([]))
    launches = [Measurement(n, PointStatus.OK, us, "us", params={"us": us})
                for n, us in (("launch_eager", 6.0), ("launch_graph", 1.0))]  # fmt: skip
    assert ("eager over graph launch, time a kernel (lab 10a)", 5.9, 6.0) in guide_ratios(launches)
    assert len(guide_ratios(launches)) == len(GUIDE_RATIOS)
