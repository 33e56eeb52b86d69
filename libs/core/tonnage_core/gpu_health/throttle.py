"""Clock event reasons (throttle bits) of NVML by name. Source: nvml.h, nvmlClocksEventReasons.

A software power cap and idling are normal on a loaded or an unloaded GPU: only hardware slowdowns are evidence.
"""

REASONS = {
    0x0001: "gpu_idle",
    0x0002: "applications_clocks_setting",
    0x0004: "sw_power_cap",
    0x0008: "hw_slowdown",
    0x0010: "sync_boost",
    0x0020: "sw_thermal_slowdown",
    0x0040: "hw_thermal_slowdown",
    0x0080: "hw_power_brake_slowdown",
    0x0100: "display_clock_setting",
}
HARDWARE = frozenset({"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"})


def reasons(bits: int) -> tuple[str, ...]:
    """Names of the set bits, in bit order; a bit without a name shows as `bit_<n>`."""
    return tuple(REASONS.get(1 << n, f"bit_{n}") for n in range(64) if bits >> n & 1)


def hardware_reasons(bits: int) -> tuple[str, ...]:
    """The set bits that say the hardware slowed itself down."""
    return tuple(name for name in reasons(bits) if name in HARDWARE)
