"""What enters a GPU's history: only OK runs where something can judge it, valid runs of a GPU that nothing can."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tonnage_core.gpu_health.measurement import Measurement, PointStatus
from tonnage_core.gpu_health.profile import GpuIdentity
from tonnage_core.gpu_health.rules import FLEET, HISTORY, HealthReadings
from tonnage_gpu_agent import local_run
from tonnage_gpu_agent.adapters.fake_nvml import FakeDriver, fake_gpu
from tonnage_gpu_agent.book import ProfileBook
from tonnage_gpu_agent.main import lookup_spec
from tonnage_gpu_agent.runs import RunReport

UNLISTED = "NVIDIA Prototype 9000"
COPY = "hbm_copy_gbps"
CALM = HealthReadings()


class Node:
    """A book and one GPU of a product; every `probe` is a run a day after the last."""

    def __init__(self, product: str = UNLISTED, folder: str = "") -> None:
        self.book = ProfileBook(folder)
        self.name, self.spec = lookup_spec(product)
        self.product, self.now = product, 0.0

    def probe(
        self,
        gbps: float = 4000.0,
        status: PointStatus = PointStatus.OK,
        outcome: str = "ok",
        health: HealthReadings = CALM,
        fleet: Mapping[str, Sequence[float]] | None = None,
        probe: str = "hbm_copy",
    ) -> dict[str, Any]:
        """The verdict that the run's profile shows."""
        self.now += 86400.0
        point = Measurement(probe, status, gbps, "GB/s", detail="relative error 0.5")
        report = RunReport(outcome, "another process came: 9", [point], seconds=20.0)
        evidence = self.book.judge(report, uuid="GPU-1", spec=self.spec, health=health, fleet=fleet)
        identity = GpuIdentity("n1", 0, "GPU-1", self.name, self.product)
        document = self.book.conclude(identity, report, evidence, now=self.now, context={}, version="0")
        verdict: dict[str, Any] = document["verdict"]
        return verdict

    def statuses(self, times: int, gbps: float = 4000.0) -> list[str]:
        return [self.probe(gbps)["status"] for _ in range(times)]

    @property
    def kept(self) -> list[float]:
        return list(self.book.record("GPU-1").history.get(COPY, ()))


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_product_outside_the_catalogue_is_unknown_with_the_reason_until_its_own_history_can_judge(node: Node) -> None:
    for earlier in range(HISTORY.minimum):
        verdict = node.probe()
        assert verdict["status"] == "UNKNOWN"
        (reason,) = verdict["reasons"]
        assert reason.startswith("no_baseline: no figure of a data sheet or of other GPUs to compare with")
        assert f"{earlier} of the {HISTORY.minimum} earlier runs" in reason
    assert node.kept == [4000.0] * HISTORY.minimum
    assert node.statuses(1) == ["OK"]


def test_then_it_is_judged_as_any_other_gpu(node: Node) -> None:
    node.statuses(HISTORY.minimum + 1)
    assert node.statuses(1, 0.93 * 4000.0) == ["WARN"]
    assert node.statuses(2, 0.8 * 4000.0) == ["WARN", "FAIL"]
    assert node.statuses(3) == ["FAIL", "FAIL", "OK"]
    assert set(node.kept) == {4000.0}


def test_its_first_run_against_a_fleet_is_judged_by_the_fleet(node: Node) -> None:
    fleet = {COPY: [4000.0] * FLEET.minimum}
    assert node.probe(fleet=fleet)["status"] == "OK"
    assert node.probe(3000.0, fleet=fleet)["status"] == "WARN"
    assert node.kept == [4000.0]


def test_a_wrong_result_of_a_product_outside_the_catalogue_is_fail_and_begins_no_history(node: Node) -> None:
    verdict = node.probe(9e9, PointStatus.WRONG, probe="gemm_bf16")
    assert verdict["status"] == "FAIL" and verdict["reasons"] == ["wrong_result:gemm_bf16: relative error 0.5"]
    assert node.probe()["status"] == "FAIL"
    assert node.kept == []


def test_a_broken_gpu_begins_its_history_once_it_was_cleared(node: Node) -> None:
    node.probe(status=PointStatus.WRONG)
    node.statuses(9)
    node.book.clear("GPU-1", "an operator", "replaced", node.now)
    assert node.statuses(HISTORY.minimum + 1) == ["UNKNOWN"] * HISTORY.minimum + ["OK"]


@pytest.mark.parametrize("outcome", ["busy", "timeout", "error"])
def test_a_run_that_was_stopped_begins_no_history(node: Node, outcome: str) -> None:
    for _ in range(9):
        assert node.probe(outcome=outcome)["status"] == "UNKNOWN"
    assert node.kept == []


@pytest.mark.parametrize(
    "health",
    [
        HealthReadings(hardware_throttle=("hw_thermal_slowdown",)),
        HealthReadings(uncorrectable_ecc=3.0),
        HealthReadings(xids=(63,)),
    ],
)
def test_a_run_beside_which_the_hardware_complained_begins_no_history(node: Node, health: HealthReadings) -> None:
    for _ in range(9):
        assert node.probe(health=health)["status"] == "WARN"
    assert node.kept == []
    node.statuses(HISTORY.minimum)
    assert node.statuses(3) == ["WARN", "WARN", "OK"]


def test_a_figure_the_host_decides_judges_nobody_and_the_reason_says_so(node: Node) -> None:
    for _ in range(9):
        verdict = node.probe(7.0, probe="h2d_pageable")
    assert verdict["reasons"] == ["no_baseline: no figure of the GPU's own was measured"]
    assert node.statuses(1) == ["UNKNOWN"]


@pytest.mark.parametrize("share, status", [(0.94, "WARN"), (0.86, "FAIL")])
@pytest.mark.parametrize("product", ["NVIDIA H200", UNLISTED])
def test_a_slow_gpu_never_becomes_its_own_measure(product: str, share: float, status: str) -> None:
    node = Node(product)
    node.statuses(8, 4200.0)
    assert node.statuses(60, share * 4200.0)[1:] == [status] * 59
    assert node.kept == [4200.0] * 8


def test_a_history_that_began_without_a_judge_survives_a_restart(tmp_path: Path) -> None:
    Node(folder=str(tmp_path)).statuses(HISTORY.minimum)
    again = Node(folder=str(tmp_path))
    assert again.kept == [4000.0] * HISTORY.minimum
    assert again.statuses(1) == ["OK"]


def test_a_single_run_of_a_product_outside_the_catalogue_says_why_it_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = RunReport(points=[Measurement("hbm_copy", PointStatus.OK, 4000.0, "GB/s")])
    monkeypatch.setattr(local_run, "run_suite", lambda driver, devices, options: report)
    found = local_run.local_probe(local_run.LocalOptions(), FakeDriver([fake_gpu(0, UNLISTED)]))
    verdict = found["gpus"][0]["verdict"]
    assert verdict["status"] == "UNKNOWN"
    assert verdict["reasons"] == [
        "no_baseline: no figure of a data sheet to compare with, and a single run has no history"
    ]
