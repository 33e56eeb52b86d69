import pytest

from tonnage_core.scheduling.speed import relative_speeds


def test_half_of_both_ceilings_is_half_the_speed() -> None:
    fast, slow = {"bf16_tflops": 800, "hbm_copy_gbps": 4000}, {"bf16_tflops": 400, "hbm_copy_gbps": 2000}
    assert relative_speeds({"a": fast, "b": slow}) == {"a": 1.0, "b": 0.5}


def test_an_unmeasured_gpu_is_unknown_not_slow() -> None:
    speeds = relative_speeds({"a": {"bf16_tflops": 800, "hbm_copy_gbps": 4000}, "b": {"bf16_tflops": 0}, "c": {}})
    assert speeds == {"a": 1.0}
    assert relative_speeds({}) == {}


def test_the_best_overall_is_one_even_when_no_gpu_leads_in_both() -> None:
    quick, wide = {"bf16_tflops": 800, "hbm_copy_gbps": 2000}, {"bf16_tflops": 400, "hbm_copy_gbps": 4000}
    speeds = relative_speeds({"a": quick, "b": wide})
    assert speeds == {"a": pytest.approx(1.0), "b": pytest.approx(1.0)}


def test_a_gpu_measured_a_thousand_times_slower_than_another_was_measured_wrong() -> None:
    good = {"bf16_tflops": 800, "hbm_copy_gbps": 4000}
    assert relative_speeds({"a": good, "b": {"bf16_tflops": 1e-300, "hbm_copy_gbps": 4000}}) == {"a": 1.0}
