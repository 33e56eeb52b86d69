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
    warming up (loading kernels, compiling, capturing), when the driver takes memory that no allocator counts.

    `helpers`: it runs processes of its own on the GPU (ranks of a collective), whose memory it cannot count: memory
    alone then says nothing, and only visible PIDs tell a stranger."""

    reserved_bytes: int
    warming: bool
    age_s: float = 0.0
    helpers: bool = False


@dataclass(frozen=True, slots=True)
class GrowthRule:
    """Unexplained growth of `growth_bytes` or more in `looks` looks in a row means that someone else came.

    What the driver holds for the child beside its allocator (context, kernels, graphs) is its overhead: the median of
    the first `settle_looks` looks after its first word, at most `overhead_bytes`. Later, while the child warms up, that
    may rise by less than `step_bytes` at a time (the driver grows its stack pool by 66 MiB on an H200) and by
    `creep_bytes` in all; a stranger on an idle GPU has to create a context first, 500 MiB there. Used memory and the
    child's word are read up to 0.1 s apart, so a large allocation shows for a look or two in one and not in the other:
    hence several looks in a row. A word older than `stale_s` says nothing, and such looks neither count nor clear, up
    to `deaf_s`.

    When helpers have ended the driver gives their memory back late, after it has dropped their PIDs, and may keep some
    (300 to 700 MiB on the first of two H200s): what is left then is learned anew and may only fall, and from
    `release_looks` looks on it may not be more than `residue_bytes`.
    """

    growth_bytes: int = 64 * MIB
    looks: int = 4
    settle_looks: int = 5
    overhead_bytes: int = 3072 * MIB
    step_bytes: int = 128 * MIB
    creep_bytes: int = 256 * MIB
    stale_s: float = 0.25
    deaf_s: float = 1.0
    release_looks: int = 100
    residue_bytes: int = 1024 * MIB
    agreeing_looks: int = 3


@dataclass(frozen=True, slots=True)
class Released:
    """What helpers left behind: the child's overhead before them (None when it had not settled), looks since they
    ended, and, where the driver attributes memory, what it attributes to nobody (None until learned)."""

    usual_bytes: int | None = None
    looks: int = 0
    recent: tuple[int, ...] = ()
    left_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GrowthWatch:
    """State of the watch: memory used before the child began; its overhead when it had settled (None before) and now;
    the last looks at the overhead, newest last; looks in a row with unexplained growth; and, once it had helpers, what
    they left."""

    before_bytes: int
    settled_bytes: int | None = None
    overhead_bytes: int = 0
    recent: tuple[int, ...] = ()
    streak: int = 0
    released: Released | None = None


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
    if child is not None and child.helpers:  # their memory is not the child's; its own is learned anew afterwards
        return _helped(state), None
    grown = seen.used_bytes - state.before_bytes
    if own_bytes is not None:
        return _attributed(state, grown - own_bytes, rule)
    if child is None:
        return _judged(state, grown - rule.overhead_bytes, rule)
    if rule.stale_s < child.age_s <= rule.deaf_s:
        return state, None
    return _told(state, grown - child.reserved_bytes, child.warming, rule)


def _helped(state: GrowthWatch) -> GrowthWatch:
    usual = state.overhead_bytes if state.settled_bytes is not None else None
    if usual is None and state.released is not None:
        usual = state.released.usual_bytes
    return replace(state, settled_bytes=None, recent=(), streak=0, released=Released(usual))


def _attributed(state: GrowthWatch, unattributed: int, rule: GrowthRule) -> tuple[GrowthWatch, str | None]:
    """The driver says what is the child's. `unattributed` falls to what several looks in a row agree on."""
    released = state.released
    if released is None:
        return _judged(state, unattributed, rule)
    recent = (*released.recent, unattributed)[-rule.agreeing_looks :]
    left = released.left_bytes
    if len(recent) == rule.agreeing_looks:
        left = max(0, *recent) if left is None else max(0, min(left, max(recent)))
    state = replace(state, released=replace(released, looks=released.looks + 1, recent=recent, left_bytes=left))
    if left is None:
        return state, None
    return _kept(state, left, rule) or _judged(state, unattributed - left, rule)


def _told(state: GrowthWatch, overhead: int, warming: bool, rule: GrowthRule) -> tuple[GrowthWatch, str | None]:
    """The child says what it holds, so that `overhead` is left to explain."""
    released = state.released
    if released is not None:
        state = replace(state, released=replace(released, looks=released.looks + 1))
    state = _learned(state, overhead, warming, rule)
    if state.settled_bytes is None:
        return (state, None) if released is not None else _judged(state, overhead - rule.overhead_bytes, rule)
    usual = released.usual_bytes if released is not None else None
    kept = None if usual is None else _kept(state, state.overhead_bytes - usual, rule)
    growth = rule.step_bytes if warming else rule.growth_bytes
    return kept or _judged(state, overhead - state.overhead_bytes, replace(rule, growth_bytes=growth))


def _kept(state: GrowthWatch, left: int, rule: GrowthRule) -> tuple[GrowthWatch, str] | None:
    """A stop when helpers seem to have left more than a driver keeps: someone came while they ran."""
    if state.released is None or state.released.looks < rule.release_looks or left <= rule.residue_bytes:
        return None
    return state, f"{left // MIB} MiB stayed in use after the probe's own ranks had ended"


def _judged(state: GrowthWatch, unexplained: int, rule: GrowthRule) -> tuple[GrowthWatch, str | None]:
    streak = state.streak + 1 if unexplained >= rule.growth_bytes else 0
    reason = f"{unexplained // MIB} MiB appeared that no probe asked for" if streak >= rule.looks else None
    return replace(state, streak=streak), reason


def _learned(state: GrowthWatch, overhead: int, warming: bool, rule: GrowthRule) -> GrowthWatch:
    """The overhead settles at the median of the first looks. Afterwards it follows what every recent look agrees on:
    up, by less than a stranger would take, while the child warms up; down when the driver gave memory back."""
    recent = (*state.recent, overhead)[-rule.settle_looks :]
    state = replace(state, recent=recent)
    if len(recent) < rule.settle_looks:
        return state
    if state.settled_bytes is None:
        settled = max(sorted(recent)[len(recent) // 2], 0)
        settled = settled if state.released is not None else min(settled, rule.overhead_bytes)
        return replace(state, settled_bytes=settled, overhead_bytes=settled)
    if max(recent) < state.overhead_bytes:
        lowest = state.settled_bytes if state.released is None else min(state.settled_bytes, max(0, *recent))
        return replace(state, overhead_bytes=max(recent), settled_bytes=lowest)
    if warming and 0 < min(recent) - state.overhead_bytes < rule.step_bytes:
        return replace(state, overhead_bytes=min(*recent, state.settled_bytes + rule.creep_bytes))
    return state


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
    runs = [run for run in runs if run.started <= now]  # the clock was set back: those of the future tell nothing
    if runs:
        rest = runs[-1].started + runs[-1].seconds + budget.cooldown_s - now
        if rest > 0:
            return "cooldown", f"the last run ended too recently: wait {rest:.0f} s"
    spent = sum(run.seconds for run in runs if run.started > now - 86400)
    if spent + expected_s > budget.seconds_per_day:
        return "budget", f"{spent:.0f} s of {budget.seconds_per_day:.0f} s of the day's probing are spent"
    return None
