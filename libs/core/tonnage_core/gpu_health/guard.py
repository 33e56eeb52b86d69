"""When a GPU may be probed, and when a running probe has to stop: pure decisions over readings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Occupancy:
    """One look at a GPU. `foreign_pids` is None where PIDs are invisible; memory is in bytes."""

    used_bytes: int | None
    foreign_pids: tuple[int, ...] | None = None
    utilization: float | None = None


@dataclass(frozen=True, slots=True)
class IdleRule:
    """Idle: no foreign process where they are visible, else less than `used_bytes` in use; no utilisation above
    `utilization` (0..1). Utilisation counters lag by a second: callers look again after a settle time."""

    used_bytes: int = 1536 * MIB
    utilization: float = 0.10


def busy_reason(seen: Occupancy, rule: IdleRule) -> str | None:
    """Why the GPU is not idle, or None. Unknown memory is a reason: nothing shows that it is idle."""
    if seen.foreign_pids:
        return f"processes use the GPU: {', '.join(map(str, seen.foreign_pids[:5]))}"
    if seen.used_bytes is None:
        return "the driver does not say how much memory is in use"
    if seen.used_bytes > rule.used_bytes:
        return f"{seen.used_bytes // MIB} MiB in use by nobody visible"
    if seen.utilization is not None and seen.utilization > rule.utilization:
        return f"utilisation is {seen.utilization:.0%}"
    return None


@dataclass(frozen=True, slots=True)
class ChildMemory:
    """What the probe process says it holds: `reserved_bytes` by its allocator, `age_s` seconds ago, and whether it is
    warming up (loading kernels, compiling, capturing), when the driver takes memory that no allocator counts."""

    reserved_bytes: int
    warming: bool
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GrowthRule:
    """Unexplained growth of `growth_bytes` or more in `looks` looks in a row means that someone else came.

    While the child warms up, its driver-side memory (kernels, graphs) may creep up to `overhead_bytes` in all, by less
    than `growth_bytes` at a time; another process's context arrives at once and is far larger. Until the child has
    said anything it creates its own context, and all of `overhead_bytes` is allowed. A word older than `stale_s` says
    nothing, so such looks neither count nor clear, up to `deaf_s`.
    """

    growth_bytes: int = 64 * MIB
    looks: int = 3
    overhead_bytes: int = 3072 * MIB
    stale_s: float = 0.25
    deaf_s: float = 1.0


@dataclass(frozen=True, slots=True)
class GrowthWatch:
    """State of the watch: memory used before the child began, and its driver-side overhead so far."""

    before_bytes: int
    overhead_bytes: int = 0
    streak: int = 0


def watch(
    state: GrowthWatch, seen: Occupancy, own_bytes: int | None, child: ChildMemory | None, rule: GrowthRule
) -> tuple[GrowthWatch, str | None]:
    """The next state and why to stop, or None.

    `own_bytes` is what the driver attributes to the child, where it says so; then that explains the growth exactly.
    Otherwise the child's own word does, plus the overhead.
    """
    if seen.foreign_pids:
        return state, f"another process came: {', '.join(map(str, seen.foreign_pids[:5]))}"
    if seen.used_bytes is None:
        return state, None
    grown = seen.used_bytes - state.before_bytes
    if own_bytes is not None:
        unexplained = grown - own_bytes
    elif child is None:
        state = replace(state, overhead_bytes=min(max(state.overhead_bytes, grown), rule.overhead_bytes))
        unexplained = grown - rule.overhead_bytes
    elif rule.stale_s < child.age_s <= rule.deaf_s:
        return state, None
    else:
        driver_side = grown - child.reserved_bytes
        if child.warming and 0 < driver_side - state.overhead_bytes < rule.growth_bytes:
            state = replace(state, overhead_bytes=min(driver_side, rule.overhead_bytes))
        unexplained = driver_side - state.overhead_bytes
    streak = state.streak + 1 if unexplained >= rule.growth_bytes else 0
    state = replace(state, streak=streak)
    return state, f"{unexplained // MIB} MiB appeared that no probe asked for" if streak >= rule.looks else None


@dataclass(frozen=True, slots=True)
class Budget:
    """At most `seconds_per_day` of probing in 24 hours and `cooldown_s` between two runs."""

    seconds_per_day: float = 900.0
    cooldown_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Run:
    """A past run, by wall clock."""

    started: float
    seconds: float


def budget_reason(runs: Sequence[Run], now: float, expected_s: float, budget: Budget) -> tuple[str, str] | None:
    """`("cooldown" | "budget", text)` when a run of `expected_s` has to wait, else None."""
    if runs:
        rest = runs[-1].started + runs[-1].seconds + budget.cooldown_s - now
        if rest > 0:
            return "cooldown", f"the last run ended too recently: wait {rest:.0f} s"
    spent = sum(run.seconds for run in runs if run.started > now - 86400)
    if spent + expected_s > budget.seconds_per_day:
        return "budget", f"{spent:.0f} s of {budget.seconds_per_day:.0f} s of the day's probing are spent"
    return None
