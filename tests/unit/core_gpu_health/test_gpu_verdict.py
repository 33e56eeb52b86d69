"""The verdict: evidence from rules, N-of-M hysteresis both ways, nothing cleared by silence or by an idle GPU."""

import pytest

from tonnage_core.gpu_health.measurement import Measurement, PointStatus
from tonnage_core.gpu_health.rules import (
    FLEET,
    HISTORY,
    HealthReadings,
    baseline_findings,
    correctness_findings,
    right_figures,
    spec_findings,
    telemetry_findings,
)
from tonnage_core.gpu_health.verdict import (
    Evidence,
    Finding,
    Hysteresis,
    Status,
    VerdictState,
    acknowledge,
    observe,
    summarise,
)
from tonnage_core.gpu_health.xid import XidPolicy

RULES = Hysteresis()
H200 = {"hbm_gbps": 4800.0, "bf16_tflops": 989.0, "fp8_tflops": 1979.0, "pcie_gbps": 64.0}
HEALTHY = {"hbm_copy_gbps": 4227.0, "bf16_tflops": 767.0, "fp8_tflops": 1350.0, "h2d_pinned_gbps": 54.5}


def evidence(ceilings: dict[str, float], past: dict[str, list[float]] | None = None) -> Evidence:
    findings = spec_findings(ceilings, H200) + baseline_findings(ceilings, past or {}, HISTORY)
    return summarise(findings, active=True, right=ceilings)


def states(state: VerdictState, *looks: Evidence) -> list[VerdictState]:
    held = []
    for now, look in enumerate(looks, start=1):
        state = observe(state, look, float(now), RULES)
        held.append(state)
    return held


def walk(state: VerdictState, *looks: Evidence) -> list[Status]:
    return [held.status for held in states(state, *looks)]


OK = Evidence(Status.OK, right=frozenset({"hbm_copy_gbps"}))
BAD = Evidence(Status.FAIL, (Finding("own_history:hbm_copy_gbps", Status.FAIL, "slow"),))


def test_a_healthy_h200_is_ok_on_first_sight() -> None:
    assert walk(VerdictState(), evidence(HEALTHY)) == [Status.OK]


def test_a_gpu_slowed_by_15_percent_goes_warn_then_fail_and_back() -> None:
    past = {"hbm_copy_gbps": [4220.0, 4230.0, 4225.0, 4228.0, 4227.0, 4226.0]}
    slow = evidence({"hbm_copy_gbps": 4227.0 * 0.85}, past)
    good = evidence({"hbm_copy_gbps": 4224.0}, past)
    assert slow.status is Status.FAIL
    held = walk(VerdictState(Status.OK), slow, slow, slow, good, good, good)
    assert held == [Status.WARN, Status.FAIL, Status.FAIL, Status.FAIL, Status.FAIL, Status.OK]


def test_one_bad_look_is_never_a_fail() -> None:
    assert walk(VerdictState(Status.OK), BAD, OK, OK, OK) == [Status.WARN, Status.WARN, Status.WARN, Status.OK]


@pytest.mark.parametrize(
    "bad", [BAD, summarise([*BAD.findings, Finding("spec_floor:bf16_tflops", Status.WARN)], active=True)]
)
def test_a_good_look_at_other_figures_clears_nothing(bad: Evidence) -> None:
    other = Evidence(Status.OK, right=frozenset({"bf16_tflops"}))
    assert walk(VerdictState(Status.OK), bad, bad, *[other] * 6)[-1] is Status.FAIL
    assert walk(VerdictState(Status.OK), bad, *[other] * 6)[-1] is Status.WARN
    both = Evidence(Status.OK, right=frozenset({"bf16_tflops", "hbm_copy_gbps"}))
    assert walk(VerdictState(Status.OK), bad, bad, *[both] * 3)[-1] is Status.OK


def test_what_was_bad_is_forgotten_once_the_gpu_is_ok_again() -> None:
    held = states(VerdictState(Status.OK), BAD, OK, OK, OK)
    assert [state.blamed for state in held] == [*[("hbm_copy_gbps",)] * 3, ()]
    assert held[-1].status is Status.OK


def test_only_the_probe_that_was_wrong_can_clear_its_wrong_result() -> None:
    def look(status: PointStatus) -> Evidence:
        points = [Measurement("gemm_bf16", status, value=767.0), Measurement("hbm_copy", PointStatus.OK, value=4227.0)]
        findings = [*spec_findings(HEALTHY, H200), *correctness_findings(points)]
        return summarise(findings, active=True, right=right_figures(points))

    wrong, unmeasured, right = (look(s) for s in (PointStatus.WRONG, PointStatus.UNSUPPORTED, PointStatus.OK))
    assert "gemm_bf16" not in wrong.right and "hbm_copy_gbps" in wrong.right
    assert walk(VerdictState(Status.OK), wrong, *[unmeasured] * 5)[-1] is Status.FAIL
    assert walk(VerdictState(Status.OK), wrong, *[right] * 3)[-1] is Status.OK


def test_two_bad_looks_of_three_are_a_fail_even_with_a_good_one_between() -> None:
    assert walk(VerdictState(Status.OK), BAD, OK, BAD) == [Status.WARN, Status.WARN, Status.FAIL]


def test_a_wrong_result_at_full_speed_is_fail_at_once() -> None:
    wrong = Measurement("gemm_bf16", PointStatus.WRONG, value=767.0, unit="TFLOP/s", detail="relative error 0.3")
    look = summarise([*spec_findings(HEALTHY, H200), *correctness_findings([wrong])], active=True)
    assert walk(VerdictState(Status.OK), look) == [Status.FAIL]


def test_a_probe_that_could_not_run_is_unknown_not_failed() -> None:
    busy = Measurement("hbm_copy", PointStatus.BUSY, detail="another process came")
    none = Measurement("gemm_fp8", PointStatus.UNSUPPORTED, detail="needs compute capability 8.9")
    look = summarise(correctness_findings([busy, none]), active=False)
    assert look.status is Status.UNKNOWN
    assert walk(VerdictState(Status.OK), look) == [Status.OK]


def test_a_test_that_could_not_allocate_is_never_a_pass() -> None:
    failed = Measurement("hbm_copy", PointStatus.ERROR, detail="could not allocate")
    assert summarise(correctness_findings([failed]), active=True).status is Status.UNKNOWN


def test_healthy_under_no_load_is_no_evidence() -> None:
    clean = telemetry_findings(HealthReadings(uncorrectable_ecc=0, remap_failure=False, remap_pending=False))
    look = summarise(clean, active=False)
    assert look.status is Status.UNKNOWN
    held = observe(VerdictState(Status.FAIL, ("slow",), 1.0), look, 2.0, RULES)
    assert held.status is Status.FAIL


def test_application_xids_never_count_against_the_gpu() -> None:
    assert telemetry_findings(HealthReadings(xids=(13, 31, 43, 45, 68, 109))) == []


def test_an_operators_own_xid_lists_come_before_the_catalogue() -> None:
    policy = XidPolicy(ignored=frozenset({79}), hardware=frozenset({31}))
    found = telemetry_findings(HealthReadings(xids=(79, 31)), policy)
    assert [(f.code, f.status) for f in found] == [("xid:31", Status.FAIL)]


def test_a_hardware_xid_fails_the_gpu_and_has_a_way_back() -> None:
    look = summarise(telemetry_findings(HealthReadings(xids=(79,))), active=False)
    assert walk(VerdictState(Status.OK), look, OK, OK, OK) == [Status.FAIL, Status.FAIL, Status.FAIL, Status.OK]


def test_the_transition_time_moves_only_when_the_status_does() -> None:
    state = observe(VerdictState(Status.OK, (), 5.0), OK, 100.0, RULES)
    assert state.since == 5.0
    assert observe(state, BAD, 200.0, RULES).since == 200.0


def test_reasons_are_sorted_and_stable_whatever_the_order_of_findings() -> None:
    a, b = Finding("a", Status.WARN, "x"), Finding("b", Status.WARN, "y")
    held = [observe(VerdictState(), summarise(order, active=True), 1.0, RULES) for order in ([a, b], [b, a])]
    assert held[0].reasons == held[1].reasons == ("a: x", "b: y")


def test_old_evidence_makes_an_ok_unknown_and_leaves_a_fail() -> None:
    silence = Evidence(Status.UNKNOWN, (), active=False)
    late = 30 * 86400.0
    assert observe(VerdictState(Status.OK, (), 0.0, (), 1.0), silence, late, RULES).status is Status.UNKNOWN
    assert observe(VerdictState(Status.FAIL, (), 0.0, (), 1.0), silence, late, RULES).status is Status.FAIL


def test_an_operator_clears_a_verdict_with_a_name_and_a_reason() -> None:
    state = acknowledge(VerdictState(Status.FAIL, ("slow",), 1.0), "ana", "reseated the card", 9.0)
    assert state.status is Status.UNKNOWN
    assert "ana" in state.reasons[0] and "reseated" in state.reasons[0]
    assert walk(state, OK) == [Status.OK]


def test_a_baseline_says_nothing_before_it_has_enough_values() -> None:
    assert baseline_findings({"hbm_copy_gbps": 1.0}, {"hbm_copy_gbps": [4227.0] * 4}, HISTORY) == []


def test_a_noisy_figure_needs_a_larger_drop() -> None:
    noisy = {"bf16_tflops": [700.0, 800.0, 650.0, 820.0, 760.0, 690.0]}
    assert [f.status for f in baseline_findings({"bf16_tflops": 640.0}, noisy, HISTORY)] == [Status.OK]


def test_a_latency_is_worse_when_it_grows() -> None:
    past = {"graph_kernel_us": [1.10, 1.12, 1.11, 1.12, 1.11]}
    assert [f.status for f in baseline_findings({"graph_kernel_us": 1.4}, past, HISTORY)] == [Status.FAIL]
    assert [f.status for f in baseline_findings({"graph_kernel_us": 0.9}, past, HISTORY)] == [Status.OK]


def test_figures_the_host_decides_are_no_evidence_against_the_gpu() -> None:
    past = {"h2d_pageable_gbps": [7.2] * 8, "kernel_launch_us": [11.0] * 8}
    assert baseline_findings({"h2d_pageable_gbps": 3.0, "kernel_launch_us": 30.0}, past, HISTORY) == []


def test_a_gpu_far_below_its_fleet_is_found() -> None:
    fleet = {"hbm_copy_gbps": [4227.0, 4230.0, 4225.0, 4228.0]}
    assert [f.status for f in baseline_findings({"hbm_copy_gbps": 3400.0}, fleet, FLEET)] == [Status.FAIL]


@pytest.mark.parametrize("share, status", [(0.88, Status.OK), (0.75, Status.WARN), (0.5, Status.FAIL)])
def test_a_floor_of_the_data_sheet_has_two_limits(share: float, status: Status) -> None:
    assert [f.status for f in spec_findings({"hbm_copy_gbps": 4800 * share}, H200)] == [status]


def test_a_good_finding_without_load_is_no_evidence() -> None:
    good = [Finding("spec_floor:hbm_copy_gbps", Status.OK)]
    assert summarise(good, active=False).status is Status.UNKNOWN
    assert summarise(good, active=True).status is Status.OK
