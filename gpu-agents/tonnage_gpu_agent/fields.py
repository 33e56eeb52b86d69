"""Telemetry as data: each field's metric, its labels and the range outside which a reading is a driver's sentinel.

Drivers mark blanks with huge or negative numbers (0x7fffffffffffffff - n, 0xffffffff, -1, NaN): a reading outside
`low..high` is dropped, never exported.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tonnage_gpu_agent.port import Reading

GIB = float(1 << 30)
BIG_COUNT = 1e15


@dataclass(frozen=True, slots=True)
class Field:
    """A reading of one GPU. `kind` is gauge or counter; `labels` stand beside `gpu` and `uuid`."""

    name: str
    metric: str
    kind: str
    help: str
    low: float
    high: float
    labels: tuple[str, ...] = ()


def _gauge(name: str, suffix: str, text: str, low: float, high: float, *labels: str) -> Field:
    return Field(name, f"tonnage_gpu_{suffix}", "gauge", text, low, high, labels)


def _counter(name: str, suffix: str, text: str, high: float, *labels: str) -> Field:
    return Field(name, f"tonnage_gpu_{suffix}", "counter", text, 0.0, high, labels)


FIELDS: tuple[Field, ...] = (
    _gauge(
        "utilization",
        "utilization_ratio",
        "Share of time the unit was busy over the driver's last sample",
        0,
        1,
        "unit",
    ),
    _gauge("memory", "memory_bytes", "Device memory by state (total, used, free, reserved)", 0, 4096 * GIB, "state"),
    _gauge("bar1", "bar1_used_bytes", "BAR1 aperture in use", 0, 4096 * GIB),
    _gauge("clock", "clock_hertz", "Current clock by domain", 0, 2e10, "domain"),
    _gauge("power", "power_watts", "Power drawn", 0, 5000),
    _gauge("power_limit", "power_limit_watts", "Enforced power limit", 1, 5000),
    _counter("energy", "energy_joules", "Energy drawn since the driver loaded", 1e13),
    _gauge("temperature", "temperature_celsius", "Temperature by sensor", -40, 150, "sensor"),
    _gauge("throttle", "clock_event_active", "1 while a clock event (throttle) reason is set", 0, 1, "reason"),
    _counter("ecc", "ecc_errors", "ECC errors since the driver loaded", BIG_COUNT, "severity"),
    _gauge("ecc_lifetime", "ecc_lifetime_errors", "ECC errors over the GPU's life", 0, BIG_COUNT, "severity"),
    _gauge("remapped_rows", "remapped_rows", "Memory rows remapped, by cause", 0, 1e6, "cause"),
    _gauge("remap_pending", "row_remap_pending", "1 when a row remap waits for a reset", 0, 1),
    _gauge("remap_failure", "row_remap_failure", "1 when a row remap failed", 0, 1),
    _counter("pcie_replay", "pcie_replays", "PCIe replays since the driver loaded", 4e9),
    _gauge(
        "pcie_throughput", "pcie_bytes_per_second", "PCIe traffic over the driver's last 20 ms", 0, 1e12, "direction"
    ),
    _gauge("pcie_link", "pcie_link", "PCIe link now and at most: generation and width", 1, 64, "what"),
    _gauge("nvlink", "nvlink_active", "1 when the NVLink is up", 0, 1, "link"),
    _counter("nvlink_errors", "nvlink_errors", "NVLink errors by kind, over all links", BIG_COUNT, "kind"),
    _gauge("fan", "fan_ratio", "Fan speed as a share of the maximum", 0, 1),
)
"""Every field, in the order it is read."""

BY_NAME = {field.name: field for field in FIELDS}


def plausible(field: Field, readings: Iterable[Reading]) -> tuple[list[Reading], int]:
    """Readings inside the field's range, and how many were dropped as sentinels."""
    kept, dropped = [], 0
    for labels, value in readings:
        if math.isfinite(value) and field.low <= value <= field.high:
            kept.append((labels, value))
        else:
            dropped += 1
    return kept, dropped
