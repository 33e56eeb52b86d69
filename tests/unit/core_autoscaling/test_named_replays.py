"""What autoscalers are reported to get wrong, replayed tick by tick through scrape text, tracks and decision.

Each replay owns the clock. The pool's policy knows what a replica carries, so that forecast, N-1 and unknowns all take
part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from tonnage_core.autoscaling.capacity import ReplicaCost
from tonnage_core.autoscaling.engine_metrics import WANTED, read_engine
from tonnage_core.autoscaling.exposition import parse
from tonnage_core.autoscaling.forecast import History
from tonnage_core.autoscaling.observation import Attempt, Knowledge, Observation, Outcome, Track, advance, observe
from tonnage_core.autoscaling.outlook import OutlookState
from tonnage_core.autoscaling.policy import ReplicaCapacity, ScalingPolicy
from tonnage_core.autoscaling.signals import RouterQueue
from tonnage_core.autoscaling.state_machine import Code, Decision, PoolState, decide

TICK_S = 10.0
PROMPT, OUTPUT = 1000, 100
# One request of 1,000 + 100 tokens takes 0.11 replica-seconds: about nine a second fill a replica.
COST = ReplicaCost(token_s=1e-4, kv_s=0.0, pair_s=0.0)
REQUEST_S = COST.request_s(PROMPT, OUTPUT)
POLICY = ScalingPolicy(min_replicas=1, max_replicas=40, capacity=ReplicaCapacity(COST), start_s=120.0)


@dataclass
class Engine:
    """A replica as its page shows it."""

    joined: bool = False
    ready_at_s: float = 0.0
    finished: float = 0.0
    running: int = 1
    waiting: int = 0
    kv: float = 0.1
    kv_name: str = "vllm:kv_cache_usage_perc"

    def page(self) -> str:
        """Its /metrics."""
        return (
            f"vllm:num_requests_running {self.running}\nvllm:num_requests_waiting {self.waiting}\n"
            f"{self.kv_name} {self.kv}\nvllm:prompt_tokens_total {self.finished * PROMPT}\n"
            f"vllm:generation_tokens_total {self.finished * OUTPUT}\nvllm:request_success_total {self.finished}\n"
            f"vllm:time_to_first_token_seconds_count {self.finished}\n"
        )


@dataclass
class Replay:
    """A pool whose target is obeyed: replicas start after `start_s`, the load spreads evenly over those that serve."""

    replicas: int
    load: float
    """Replicas that the load would fill."""
    start_s: float = 100.0
    policy: ScalingPolicy = POLICY
    obey: bool = True
    now_s: float = 1000.0
    state: PoolState = field(default_factory=PoolState)
    engines: dict[str, Engine] = field(default_factory=dict)
    tracks: dict[str, Track] = field(default_factory=dict)
    answers: Callable[[str, Engine], Attempt | None] = lambda name, engine: None
    """Overrides one scrape; None scrapes as usual."""
    router: float | None = 0.0
    targets: list[int] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        for _ in range(self.replicas):
            self._add(ready_at_s=0.0, joined=False)

    def _add(self, ready_at_s: float, *, joined: bool) -> None:
        name = f"http://e{self.made}"
        self.made += 1
        self.engines[name] = Engine(joined, ready_at_s)
        self.tracks[name] = Track(name, "m", self.now_s, joined=joined)

    @property
    def serving(self) -> list[Engine]:
        """Replicas that have started."""
        return [engine for engine in self.engines.values() if engine.ready_at_s <= self.now_s]

    def run(self, seconds: float, load: Callable[[float], float] | None = None) -> "Replay":
        """Ticks for `seconds`; `load(since)` replaces the constant load."""
        began = self.now_s
        while self.now_s - began < seconds:
            self.tick(self.load if load is None else load(self.now_s - began))
        return self

    def tick(self, load: float) -> Decision:
        """One scrape of everybody, one decision, and obedience."""
        self.now_s += TICK_S
        serving = self.serving
        for engine in serving:
            engine.finished += load / REQUEST_S * TICK_S / len(serving)
        for name, engine in self.engines.items():
            self.tracks[name] = advance(self.tracks[name], self._scrape(name, engine))
        seen = [observe(t, self.now_s, stale_after_s=20, start_grace_s=600) for t in self.tracks.values()]
        router = RouterQueue(self.router) if self.router is not None else RouterQueue(None, 1e9)
        self.state, decision = decide(self.state, seen, self.now_s, self.policy, router)
        self.targets.append(decision.target)
        self.decisions.append(decision)
        if self.obey:
            self._obey(decision.target)
        return decision

    def _scrape(self, name: str, engine: Engine) -> Attempt:
        given = self.answers(name, engine)
        if given is not None:
            return given
        if engine.ready_at_s > self.now_s:
            return Attempt(self.now_s, Outcome.UNREACHABLE)
        return Attempt(self.now_s, Outcome.OK, read_engine(parse(engine.page(), WANTED)))

    def _obey(self, target: int) -> None:
        while len(self.engines) < target:
            self._add(self.now_s + self.start_s, joined=True)
        for name in list(self.engines)[target:]:
            del self.engines[name], self.tracks[name]

    def failed(self, outcome: Outcome = Outcome.HTTP_ERROR) -> Attempt:
        """A scrape that gave nothing."""
        return Attempt(self.now_s, outcome, detail="HTTP status 500")

    def codes(self, last: int = 1) -> set[Code]:
        """Reasons of the last decisions."""
        return {reason.code for decision in self.decisions[-last:] for reason in decision.reasons}


def turns(targets: Sequence[int]) -> int:
    """Changes of direction."""
    steps = [b - a for a, b in pairwise(targets) if a != b]
    return sum((a > 0) != (b > 0) for a, b in pairwise(steps))


def settled(replicas: int, load: float, **more: object) -> Replay:
    """A pool that has seen a quarter of an hour of a constant load."""
    return Replay(replicas, load, **more).run(900)  # type: ignore[arg-type]


def test_a_constant_load_keeps_a_constant_target() -> None:
    replay = settled(6, 4.0)
    replay.run(3600)
    assert replay.targets == sorted(replay.targets, reverse=True), "the margin shrinks as evidence comes in"
    assert replay.targets[-1] == 5


def test_series_of_a_replica_that_left_are_forgotten() -> None:
    replay = settled(6, 4.0)
    target = replay.targets[-1]
    gone = list(replay.engines)[-1]
    replay.engines[gone].kv = 1.0
    replay.tick(4.0)
    del replay.engines[gone], replay.tracks[gone]
    replay.obey = False
    replay.run(900)
    assert max(replay.targets[-50:]) <= target
    assert Code.ENDPOINTS_UNKNOWN not in replay.codes(50)


def test_a_metric_renamed_in_the_middle_is_read_on() -> None:
    replay = settled(6, 4.0)
    before = replay.targets[-1]
    for engine in replay.engines.values():
        engine.kv_name = "vllm:gpu_cache_usage_perc"
    replay.run(600)
    assert set(replay.targets[-60:]) == {before}
    assert replay.decisions[-1].load.totals
    for engine in replay.engines.values():
        engine.kv_name = "vllm:a_name_nobody_knows"
    replay.run(900, load=lambda since: 1.0)
    assert min(replay.targets[-90:]) == before, "a signal that vanished is unknown, and nothing is given up on unknown"
    assert Code.SIGNAL_MISSING in replay.codes()


def test_metrics_that_answer_500_for_three_minutes_change_nothing() -> None:
    replay = settled(6, 4.0)
    before = replay.targets[-1]
    replay.answers = lambda name, engine: replay.failed()
    replay.run(180)
    assert set(replay.targets[-18:]) == {before}
    replay.answers = lambda name, engine: None
    replay.run(600)
    assert set(replay.targets[-60:]) <= {before, before - 1}, "a margin that shrinks may save one"


def test_one_replica_unknown_for_long_gives_nothing_up() -> None:
    replay = settled(6, 4.0)
    before = replay.targets[-1]
    dead = next(iter(replay.engines))
    replay.answers = lambda name, engine: replay.failed() if name == dead else None
    replay.run(110, load=lambda since: 0.5)
    assert min(replay.targets[-11:]) == before


@pytest.mark.parametrize("kv", [float("nan"), -1.0, 7.0])
def test_a_value_that_is_no_number_is_unknown(kv: float) -> None:
    replay = settled(6, 4.0)
    before = replay.targets[-1]
    for engine in replay.engines.values():
        engine.kv = kv
    replay.run(600, load=lambda since: 0.5)
    assert min(replay.targets[-60:]) == before


def test_a_counter_that_starts_again_is_no_load_and_no_calm() -> None:
    replay = settled(6, 4.0)
    before = replay.targets[-1]
    for engine in replay.engines.values():
        engine.finished = 0.0
    replay.run(600)
    assert set(replay.targets[-60:]) == {before}


def test_pods_that_stay_pending_are_counted_then_given_up_and_tried_again() -> None:
    replay = settled(4, 2.5, start_s=1e9)
    replay.run(590, load=lambda since: 8.0)
    wanted = replay.targets[-1]
    assert wanted >= 8
    pending = [one.knowledge for one in observed(replay)]
    assert pending.count(Knowledge.PENDING) == wanted - 4
    assert max(replay.targets) <= 20, "a step looks like a trend for a while; pending replicas never multiply"
    assert turns(replay.targets[60:]) <= 1
    replay.run(130, load=lambda since: 8.0)
    assert replay.targets[-1] == 4
    assert Code.UNSCHEDULABLE in replay.codes()
    replay.run(700, load=lambda since: 8.0)
    assert replay.targets[-1] == 4, "it waits before it tries again"
    replay.run(300, load=lambda since: 8.0)
    assert replay.targets[-1] > 4


def observed(replay: Replay) -> list[Observation]:
    """The observations of now."""
    return [observe(t, replay.now_s, stale_after_s=20, start_grace_s=600) for t in replay.tracks.values()]


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_clock_that_jumps_gives_nothing_up(jump_s: float) -> None:
    replay = settled(6, 4.0)
    before = replay.targets[-1]
    replay.now_s += jump_s
    replay.run(300)
    assert min(replay.targets[-30:]) == before
    assert max(replay.targets[-30:]) <= before + 2


def test_a_burst_from_zero_starts_replicas_and_never_runs_away() -> None:
    policy = ScalingPolicy(min_replicas=0, max_replicas=40, capacity=ReplicaCapacity(COST), idle_to_zero_s=300)
    replay = Replay(0, 0.0, policy=policy)
    replay.run(60)
    assert set(replay.targets) == {0}
    for waiting in (1.0, 5.0, 20.0, 60.0):
        replay.router = waiting
        replay.tick(0.0)
    assert replay.targets[-1] == 1, "nothing is known of a request yet: one replica finds out"
    replay.run(50)
    assert replay.targets[-1] == 1
    replay.run(20)
    replay.router = 0.0
    replay.run(600, load=lambda since: 4.0)
    assert 5 <= max(replay.targets) <= 10
    for engine in replay.engines.values():
        engine.running, engine.kv = 0, 0.0
    replay.run(1200, load=lambda since: 0.0)
    assert replay.targets[-1] == 0


def test_the_last_replica_stays_while_requests_run() -> None:
    policy = ScalingPolicy(min_replicas=0, max_replicas=40, capacity=ReplicaCapacity(COST), idle_to_zero_s=300)
    replay = Replay(1, 0.0, policy=policy)
    next(iter(replay.engines.values())).finished = 1.0
    replay.run(1500, load=lambda since: 0.01)
    assert replay.targets[-1] == 1


@pytest.mark.parametrize("edge", [1.0, 5.0, 19.0])
def test_load_at_the_edge_of_n_and_n_minus_one_does_not_flap(edge: float) -> None:
    replay = settled(int(edge) + 4, edge)
    replay.run(1500, load=lambda since: edge * (1.05 if int(since / 60) % 2 else 0.95))
    assert turns(replay.targets) <= 1


def test_from_twenty_to_twenty_one_and_back_takes_one_step_each() -> None:
    long_ago = OutlookState(history=History(ratios=(1.0,) * 240))
    replay = settled(24, 15.0, state=PoolState(outlook=long_ago))
    base = replay.targets[-1]
    replay.run(1200, load=lambda since: 17.5)
    up = replay.targets[-1]
    assert base < up <= base + 2
    replay.run(1500, load=lambda since: 15.0)
    assert base - 1 <= replay.targets[-1] < up
    assert turns(replay.targets[90:]) <= 1


def test_a_page_that_stands_still_while_requests_run_is_unknown() -> None:
    replay = settled(6, 4.0)
    before = replay.targets[-1]
    pages = {name: engine.page() for name, engine in replay.engines.items()}
    replay.answers = lambda name, engine: (
        Attempt(replay.now_s, Outcome.OK, read_engine(parse(pages[name], WANTED))) if name in pages else None
    )
    replay.run(300)
    assert min(replay.targets[-60:]) == before
    assert {one.knowledge for one in observed(replay)} == {Knowledge.STALE}
    assert "frozen" in observed(replay)[0].reason


def test_a_page_that_stands_still_while_nothing_runs_is_an_idle_engine() -> None:
    replay = settled(2, 0.5)
    for engine in replay.engines.values():
        engine.running = 0
    replay.run(300, load=lambda since: 0.0)
    assert {one.knowledge for one in observed(replay)} == {Knowledge.FRESH}
    track = next(iter(replay.tracks.values()))
    seen = observe(track, replay.now_s, stale_after_s=20, start_grace_s=600, router_in_flight=3)
    assert seen.knowledge is Knowledge.STALE, "the router says that requests run there"
