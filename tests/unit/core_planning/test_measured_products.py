"""Measured matrix products under a roofline: what a probe did not give is left out, never made up."""

import math

from tonnage_core.planning.measured import measured_products

GOOD = {"name": "gemm_bf16", "status": "ok", "flops": 2e12, "bytes": 4e9, "params": {"batch": 64, "us": 4000.0}}


def test_a_product_stands_at_its_intensity_and_rate() -> None:
    (point,) = measured_products({"probes": [GOOD]})
    assert (point.precision, point.label) == ("bf16", "bf16 product, batch 64")
    assert math.isclose(point.intensity, 500.0)
    assert math.isclose(point.tflops, 500.0)


def test_products_rise_by_intensity_within_a_precision() -> None:
    small = GOOD | {"flops": 2e9}
    found = measured_products({"probes": [GOOD, GOOD | {"name": "gemm_fp8"}, small]})
    assert [(p.precision, p.intensity) for p in found] == [("bf16", 0.5), ("bf16", 500.0), ("fp8", 500.0)]


def test_probes_that_say_nothing_are_left_out() -> None:
    bad = [
        GOOD | {"status": "error"}, GOOD | {"name": "hbm_read"}, GOOD | {"flops": None}, GOOD | {"bytes": 0},
        GOOD | {"params": {"us": float("nan")}}, GOOD | {"params": None}, GOOD | {"flops": True}, "text", None,
    ]  # fmt: skip
    assert measured_products({"probes": bad}) == []
    assert measured_products({"probes": "none"}) == []
    assert measured_products({}) == []
