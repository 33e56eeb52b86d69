"""Telemetry against a driver that hangs, loses a GPU, has none and returns sentinels."""

import math
import time
from collections.abc import Callable

import pytest

from tonnage_gpu_agent.adapters.fake_nvml import FakeDriver, fake_gpu
from tonnage_gpu_agent.fields import BY_NAME, FIELDS, Field, plausible
from tonnage_gpu_agent.telemetry import DeviceState, DeviceWatch, Mode, Telemetry
from tonnage_runtime.clock import ManualClock, SystemClock


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return condition()


def watch(driver: FakeDriver, clock: ManualClock, index: int = 0) -> DeviceWatch:
    return DeviceWatch(driver, index, clock, interval_s=1.0, hang_after_s=5.0)


def test_a_healthy_gpu_has_every_reading_it_supports() -> None:
    one = watch(FakeDriver([fake_gpu()]), ManualClock())
    one.read_once()
    view = one.view()
    assert view.state is DeviceState.OK
    assert view.snapshot is not None
    assert view.snapshot.value("power") == 118.3
    assert view.snapshot.value("fan") is None


@pytest.mark.parametrize(
    "field, raw",
    [
        ("temperature", 9223372036854775794.0),
        ("temperature", float(0x7FFFFFFF)),
        ("power", 4294967295 / 1e3),
        ("utilization", 2147483632.0),
        ("memory", -1.0),
        ("ecc", 18446744073709551615.0),
        ("clock", math.nan),
        ("energy", math.inf),
    ],
)
def test_a_sentinel_is_dropped_and_counted_never_exported(field: str, raw: float) -> None:
    kept, dropped = plausible(BY_NAME[field], [(("x",), raw)])
    assert (kept, dropped) == ([], 1)


SCALE = {"utilization": 100, "fan": 100, "power": 1e3, "power_limit": 1e3, "energy": 1e3, "clock": 1e-6,
         "pcie_throughput": 1e-3}  # fmt: skip
"""What the adapter divides the driver's number by."""
WIDE = {"memory", "bar1", "energy", "ecc", "ecc_lifetime", "nvlink_errors"}
"""Fields of 64 bits, in which all ones of 32 bits may be a value."""


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_fields_blanks_are_dropped_and_its_own_range_is_kept(field: Field) -> None:
    raw = [-1.0, 0x7FFFFFFFFFFFFFF0, 0xFFFFFFFFFFFFFFFF] + ([] if field.name in WIDE else [0xFFFFFFFF])
    blanks = [value / SCALE.get(field.name, 1) for value in raw] if field.name != "temperature" else raw[1:]
    blanks += [math.nan, math.inf, -math.inf]
    assert plausible(field, [((), float(value)) for value in blanks]) == ([], len(blanks))
    beyond = [((), math.nextafter(field.low, -math.inf)), ((), math.nextafter(field.high, math.inf))]
    within = [((), field.low), ((), field.high)]
    assert plausible(field, [*within, *beyond]) == (within, 2)


def test_a_sentinel_hides_only_itself() -> None:
    gpu = fake_gpu()
    gpu.readings["temperature"] = [(("gpu",), 9223372036854775794.0), (("memory",), 45.0)]
    one = watch(FakeDriver([gpu]), ManualClock())
    one.read_once()
    view = one.view()
    assert view.snapshot is not None
    assert view.snapshot.value("temperature", "gpu") is None
    assert view.snapshot.value("temperature", "memory") == 45.0
    assert view.dropped_total == 1


def test_one_lost_gpu_never_blinds_the_others_and_comes_back() -> None:
    driver = FakeDriver([fake_gpu(0), fake_gpu(1)])
    clock = ManualClock()
    both = [watch(driver, clock, 0), watch(driver, clock, 1)]
    driver.gpus[1].lost = True
    for one in both:
        one.read_once()
    assert [one.view().state for one in both] == [DeviceState.OK, DeviceState.LOST]
    assert both[1].view().snapshot is None
    driver.gpus[1].lost = False
    both[1].read_once()
    assert both[1].view().state is DeviceState.OK


def test_a_hung_driver_call_is_seen_by_the_clock_and_blinds_only_its_gpu() -> None:
    driver = FakeDriver([fake_gpu(0), fake_gpu(1)])
    clock = ManualClock()
    sick, well = watch(driver, clock, 0), watch(driver, clock, 1)
    driver.gpus[0].hang = True
    sick.start()
    assert until(lambda: sick._busy_since is not None)
    clock.advance(6.0)
    well.read_once()
    assert sick.view().state is DeviceState.HUNG
    assert "6 s" in sick.view().detail
    assert well.view().state is DeviceState.OK
    driver.gpus[0].hang = False
    driver.gpus[0].release.set()
    assert until(lambda: sick.view().state is DeviceState.OK)
    sick.stop()


def test_an_old_snapshot_is_stale_and_shows_nothing() -> None:
    clock = ManualClock()
    one = watch(FakeDriver([fake_gpu()]), clock)
    one.read_once()
    clock.advance(60.0)
    assert one.view().state is DeviceState.STALE
    assert one.view().snapshot is None


def test_a_node_without_a_gpu_is_a_stated_mode_and_ready() -> None:
    telemetry = Telemetry(FakeDriver([]), SystemClock())
    telemetry.start()
    assert until(lambda: telemetry.mode is Mode.NO_GPU)
    assert "driver library" in telemetry.reason
    assert telemetry.not_ready() is None
    telemetry.stop()


def test_a_driver_that_never_answers_is_not_ready_and_says_so() -> None:
    clock = ManualClock()
    telemetry = Telemetry(FakeDriver([fake_gpu()]), clock, hang_after_s=5.0)
    clock.advance(6.0)
    assert telemetry.not_ready() == "the GPU driver has not answered for 6 s"


def test_a_driver_installed_later_is_found() -> None:
    driver = FakeDriver([])
    telemetry = Telemetry(driver, SystemClock(), retry_s=0.01, interval_s=0.01)
    telemetry.start()
    assert until(lambda: telemetry.mode is Mode.NO_GPU)
    driver.gpus.append(fake_gpu())
    assert until(lambda: telemetry.mode is Mode.GPU)
    assert until(lambda: telemetry.views()[0].state is DeviceState.OK)
    telemetry.stop()
    assert driver.stopped


def test_xid_events_reach_their_listener() -> None:
    driver = FakeDriver([fake_gpu()])
    seen: list[tuple[str, int]] = []
    telemetry = Telemetry(driver, SystemClock(), on_xid=lambda uuid, code: seen.append((uuid, code)))
    telemetry.start()
    driver.xids.put(("GPU-1", 79))
    assert until(lambda: seen == [("GPU-1", 79)])
    telemetry.stop()


def test_every_field_has_its_own_metric_and_a_range() -> None:
    assert len({field.metric for field in FIELDS}) == len(FIELDS)
    assert all(field.low < field.high for field in FIELDS)
