"""Each probe calls a wrong kernel wrong, whatever its speed; the three attentions are attention."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tonnage_core.gpu_health.measurement import Measurement, PointStatus
from tonnage_gpu_agent.kernels.lora import AdapterRows
from tonnage_gpu_agent.kernels.paged_decode import attention_reference
from tonnage_gpu_agent.probes import attention, decode_attention, fusion, lora_gemm
from tonnage_gpu_agent.probes.probe import Bench, judged, relative_error
from tonnage_gpu_agent.probes.timing import HostTimer

POINT = Measurement("x", PointStatus.OK, 1.0, "us")


def bench() -> Bench:
    return Bench(torch.device("cpu"), HostTimer(), torch.Generator().manual_seed(3), quick=True)


@pytest.mark.parametrize("error", [0.0, 0.01])
def test_an_error_within_its_limit_is_right(error: float) -> None:
    assert judged(POINT, error, 0.01) == Measurement("x", PointStatus.OK, 1.0, "us", relative_error=error)


@pytest.mark.parametrize("error, kept", [(0.0101, 0.0101), (math.inf, None), (math.nan, None)])
def test_an_error_over_its_limit_or_none_at_all_is_wrong(error: float, kept: float | None) -> None:
    point = judged(POINT, error, 0.01)
    assert (point.status, point.relative_error) == (PointStatus.WRONG, kept)
    assert point.detail == f"relative error {error:.3g} is over 0.01"


def test_the_error_is_that_of_the_whole_result_in_double_precision() -> None:
    assert relative_error(torch.tensor([3.0, 4.4]), torch.tensor([3.0, 4.0])) == pytest.approx(0.08)
    assert relative_error(torch.tensor([3.0, -4.0]), torch.tensor([3.0, 4.0])) == pytest.approx(1.6)
    one = torch.ones(1, dtype=torch.float64)
    assert relative_error(one, one + 1e-9) == pytest.approx(1e-9)
    assert relative_error(torch.tensor([0.0, 0.25]), torch.zeros(2)) == 0.25
    for broken in (math.nan, math.inf, -math.inf):
        assert relative_error(torch.tensor([3.0, broken]), torch.tensor([3.0, 4.0])) == math.inf


@pytest.mark.parametrize("name", sorted(attention.IMPLEMENTATIONS))
@pytest.mark.parametrize("sharpness", [1.0, 60.0])
def test_every_attention_is_attention(name: str, sharpness: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several tiles, the last of them short, and with scores that overflow without a running maximum."""
    monkeypatch.setattr(attention, "TILE", 32)
    torch.manual_seed(5)
    q, k, v = (torch.randn(1, 2, 75, 16) for _ in range(3))
    q *= sharpness
    scores = q.double() @ k.double().transpose(-1, -2) / 4.0
    want = torch.softmax(scores, -1) @ v.double()
    assert relative_error(attention.IMPLEMENTATIONS[name](q, k, v), want) < 1e-4


def test_a_wrong_fused_kernel_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "scale_shift", lambda x, y, a, b: y.copy_(x * a + b * 1.01))
    found = {point.name: point.status for point in fusion.probe.points(bench())}
    assert found == {"fusion_copy": PointStatus.OK, "fusion_triton": PointStatus.WRONG}


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_a_wrong_adapter_product_is_wrong(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels give way to plain products, right or 10 % too large."""

    def shrink(x: torch.Tensor, a: torch.Tensor, rows: Any, part: torch.Tensor, cut: Any) -> None:
        part.zero_()
        for row, adapter in adapters(rows):
            part[0, row] = a[adapter] @ x[row]

    def expand(part: torch.Tensor, b: torch.Tensor, y: torch.Tensor, rows: Any, scale: float, cut: Any) -> None:
        for row, adapter in adapters(rows):
            y[row] += factor * scale * (b[adapter] @ part.sum(0)[row])

    monkeypatch.setattr(lora_gemm, "shrink", shrink)
    monkeypatch.setattr(lora_gemm, "expand", expand)
    (point,) = lora_gemm.probe.points(bench())
    assert point.status is (PointStatus.OK if factor == 1.0 else PointStatus.WRONG)
    assert point.value is not None


def adapters(rows: AdapterRows) -> list[tuple[int, int]]:
    """Row and adapter of each slot of the grouping."""
    starts = rows.starts.tolist()
    return [(int(rows.order[slot]), i) for i in range(len(starts) - 1) for slot in range(starts[i], starts[i + 1])]


@pytest.mark.parametrize("fault", [1.0, 1.05, math.nan])
def test_a_wrong_decode_attention_is_wrong(fault: float, monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel:
        @staticmethod
        def make(*arguments: Any) -> Callable[..., None]:
            return lambda q, k, v, table, lengths, out: out.copy_(attention_reference(q, k, v, table, lengths) * fault)

    monkeypatch.setattr(decode_attention, "PagedDecode", Kernel)
    (point,) = decode_attention.probe.points(bench())
    assert point.status is (PointStatus.OK if fault == 1.0 else PointStatus.WRONG)


def test_a_wrong_attention_is_wrong_and_the_others_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {**attention.IMPLEMENTATIONS, "tiled": lambda q, k, v: attention.naive(q, k, v) * 1.1}
    monkeypatch.setattr(attention, "IMPLEMENTATIONS", wrong)
    found = {point.params["implementation"]: point.status for point in attention.probe.points(bench())}
    assert found == {"naive": PointStatus.OK, "tiled": PointStatus.WRONG, "sdpa": PointStatus.OK}
