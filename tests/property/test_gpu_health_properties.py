"""Properties of the verdict and of the guard, whatever the order of looks."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tonnage_core.gpu_health.guard import ChildMemory, GrowthRule, GrowthWatch, Occupancy, watch
from tonnage_core.gpu_health.throttle import REASONS, hardware_reasons, reasons
from tonnage_core.gpu_health.verdict import Evidence, Finding, Hysteresis, Status, VerdictState, observe
from tonnage_core.gpu_health.xid import parse_kernel_line, pci_key

RULES = Hysteresis()
MIB = 1 << 20
LOOKS = st.lists(st.tuples(st.sampled_from(list(Status)), st.booleans()), max_size=40)


def walked(looks: list[tuple[Status, bool]]) -> list[VerdictState]:
    states = [VerdictState()]
    for now, (status, active) in enumerate(looks, start=1):
        evidence = Evidence(status, (Finding("x", status, "seen"),), active)
        states.append(observe(states[-1], evidence, float(now), RULES))
    return states


@given(LOOKS)
def test_ok_is_never_held_without_a_good_look_under_load(looks: list[tuple[Status, bool]]) -> None:
    for index, state in enumerate(walked(looks)):
        if state.status is Status.OK:
            assert (Status.OK, True) in looks[:index]


@given(LOOKS)
def test_a_fail_is_left_only_by_a_good_look_under_load(looks: list[tuple[Status, bool]]) -> None:
    states = walked(looks)
    for before, after, look in zip(states, states[1:], looks, strict=False):
        if before.status is Status.FAIL and after.status is not Status.FAIL:
            assert look == (Status.OK, True)


@given(LOOKS)
def test_the_transition_time_moves_exactly_with_the_status(looks: list[tuple[Status, bool]]) -> None:
    states = walked(looks)
    for before, after in pairwise(states):
        assert (before.since == after.since) == (before.status is after.status)


@given(st.lists(st.integers(0, 140_000), max_size=60), st.integers(0, 4000))
def test_memory_that_the_driver_gives_to_the_child_never_stops_a_run(held: list[int], before: int) -> None:
    state = GrowthWatch(before * MIB)
    for mib in held:
        seen = Occupancy((before + mib) * MIB, ())
        state, reason = watch(state, seen, mib * MIB, ChildMemory(0, warming=False), GrowthRule())
        assert reason is None


@given(st.integers(64, 100_000), st.integers(0, 3000))
def test_memory_that_nobody_explains_always_stops_a_timed_run(taken: int, overhead: int) -> None:
    child = ChildMemory(0, warming=False)
    state = GrowthWatch(0, overhead * MIB, overhead * MIB)
    found = []
    for _ in range(GrowthRule().looks):
        state, reason = watch(state, Occupancy((overhead + taken) * MIB), None, child, GrowthRule())
        found.append(reason)
    assert found[-1] is not None


@given(st.integers(0, (1 << 64) - 1))
def test_throttle_bits_have_one_name_each(bits: int) -> None:
    named = reasons(bits)
    assert len(named) == bits.bit_count()
    assert set(hardware_reasons(bits)) <= set(named) & set(REASONS.values())


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F), st.integers(1, 999))
def test_a_gpu_is_found_by_its_kernel_address(domain: int, bus: int, device: int, code: int) -> None:
    line = f"NVRM: Xid (PCI:{domain:04x}:{bus:02x}:{device:02x}): {code}, pid=1"
    assert parse_kernel_line(line) == (pci_key(f"{domain:08X}:{bus:02X}:{device:02X}.0"), code)
