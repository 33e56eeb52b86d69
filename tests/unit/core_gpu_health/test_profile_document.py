"""GpuProfile documents, throttle bits and XIDs."""

import pytest

from tonnage_core.errors import BadInputError
from tonnage_core.gpu_health.measurement import Measurement, PointStatus, measurement_from
from tonnage_core.gpu_health.profile import GpuIdentity, ceilings, curves, gpu_profile
from tonnage_core.gpu_health.throttle import hardware_reasons, reasons
from tonnage_core.gpu_health.xid import XidClass, classify, label, parse_kernel_line, pci_key

POINTS = [
    Measurement("hbm_copy", PointStatus.OK, 4001.7, "GB/s", params={"bytes": 1, "us": 9.0}),
    Measurement("hbm_copy", PointStatus.OK, 4226.7, "GB/s", params={"bytes": 2, "us": 9.0}),
    Measurement("gemm_bf16", PointStatus.OK, 4.0, "TFLOP/s", params={"batch": 1, "us": 33.8}),
    Measurement("gemm_fp8", PointStatus.UNSUPPORTED, detail="needs compute capability 8.9"),
    Measurement("hbm_read", PointStatus.BUSY),
]


def test_a_ceiling_is_the_best_measured_point_and_absent_when_none_was() -> None:
    assert ceilings(POINTS) == {"hbm_copy_gbps": 4226.7, "bf16_tflops": 4.0}


def test_a_curve_keeps_the_order_and_the_parameters_of_its_points() -> None:
    assert curves(POINTS)["gemm_bf16"] == [{"batch": 1, "us": 33.8}]
    assert [entry["gbps"] for entry in curves(POINTS)["hbm_copy"]] == [4001.7, 4226.7]


def test_a_profile_has_the_fields_of_the_contract() -> None:
    identity = GpuIdentity("n1", 0, "GPU-1", "H200-SXM-141GB", "NVIDIA H200", 150109880320)
    document = gpu_profile(
        identity,
        POINTS,
        measured_at="2026-11-29T12:12:00Z",
        context={"driver": "580.159.04"},
        verdict={"status": "OK", "reasons": []},
        version="0.1.0",
    )
    wanted = {"schema", "node", "index", "uuid", "name", "product", "memory_bytes", "measured_at", "context"}
    assert wanted | {"ceilings", "curves", "verdict", "probes"} <= set(document)
    assert document["schema"] == "tonnage.gpu_profile/1"
    assert document["probes"][3] == {
        "name": "gemm_fp8",
        "status": "unsupported",
        "detail": "needs compute capability 8.9",
    }


def test_a_point_survives_its_document() -> None:
    assert [measurement_from(point.document()) for point in POINTS] == POINTS


@pytest.mark.parametrize("document", [{}, {"name": "x"}, {"name": "x", "status": "fine"}])
def test_a_broken_point_is_refused_by_name(document: dict[str, str]) -> None:
    with pytest.raises(BadInputError):
        measurement_from(document)


@pytest.mark.parametrize(
    "bits, names, hardware",
    [
        (0x0, (), ()),
        (0x1, ("gpu_idle",), ()),
        (0x4, ("sw_power_cap",), ()),
        (0x8, ("hw_slowdown",), ("hw_slowdown",)),
        (0x40, ("hw_thermal_slowdown",), ("hw_thermal_slowdown",)),
        (0x80, ("hw_power_brake_slowdown",), ("hw_power_brake_slowdown",)),
        (0x400, ("bit_10",), ()),
        (0x45, ("gpu_idle", "sw_power_cap", "hw_thermal_slowdown"), ("hw_thermal_slowdown",)),
    ],
)
def test_power_cap_and_idle_are_no_hardware_throttling(
    bits: int, names: tuple[str, ...], hardware: tuple[str, ...]
) -> None:
    assert reasons(bits) == names
    assert hardware_reasons(bits) == hardware


def test_kernel_lines_and_driver_addresses_name_the_same_gpu() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus."
    assert parse_kernel_line(line) == ("0000:3b:00", 79)
    assert pci_key("00000000:3B:00.0") == "0000:3b:00"
    assert parse_kernel_line("usb 1-1: new device") is None


def test_unlisted_xids_share_one_label() -> None:
    assert (label(79), label(31), label(99999)) == ("79", "31", "other")
    assert classify(31) is XidClass.APPLICATION
    assert classify(62) is XidClass.HARDWARE
