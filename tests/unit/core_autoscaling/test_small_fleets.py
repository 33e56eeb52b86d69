"""Pools of a few replicas, where one is much of the whole and chance is large: room for it, growth, no flapping."""

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tonnage_core.autoscaling.capacity import ReplicaCost, RequestMix, replicas_for, slow_share, tpot_fill
from tonnage_core.autoscaling.engine_metrics import EngineReading, Signal
from tonnage_core.autoscaling.observation import Knowledge, Observation
from tonnage_core.autoscaling.policy import ReplicaCapacity, ScalingPolicy
from tonnage_core.autoscaling.signals import RouterQueue
from tonnage_core.autoscaling.simulation.lean_engine import Job, LeanEngine
from tonnage_core.autoscaling.state_machine import Code, Decision, PoolState, decide
from tonnage_core.engine.batch import Batch

MIX = RequestMix(1000.0, 100.0)
# About a 14B model on one H20 with a budget of 8,192 tokens: a step full of prompts takes 2.4 s.
SLOW = ReplicaCapacity(ReplicaCost(3e-4, 5.5e-8, 9e-9, full_s=2.44, step_s=0.011), 4.0, 0.1)
FAST = ReplicaCapacity(ReplicaCost(1e-4, 0.0, 0.0), 2.0)
TICK_S = 10.0


def test_few_replicas_leave_more_room_for_prompts_that_slow_the_tokens_of_others() -> None:
    fills = [SLOW.fill(MIX, count) for count in (1, 2, 4, 8, 16, 64)]
    assert fills == sorted(fills)
    assert fills[0] < 0.4 and fills[-1] > 0.7
    assert tpot_fill(SLOW.cost, MIX, 2, None) == 1.0
    assert tpot_fill(FAST.cost, MIX, 2, 0.05) == 1.0, "no step is known to be long"


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_room_for_waiting_is_the_one_computed_by_hand(replicas: int) -> None:
    """Requests of 0.11 s; a prompt a deviation longer than the mean leaves 1.8 of 2 s; one of 500 may miss that."""
    expected = 1.8 / (1.8 + 0.11 / replicas * math.log(500))
    assert FAST.fill(MIX, replicas) == pytest.approx(expected)


def test_an_engine_whose_full_step_is_within_the_limit_makes_no_token_late() -> None:
    chunked = ReplicaCost(3e-4, 0.0, 9e-9, full_s=0.09, step_s=0.011)
    assert slow_share(chunked, MIX, 1, 0.1, 0.99) == 0.0
    assert slow_share(chunked, MIX, 1, 0.05, 0.9) > 0.01


def test_the_share_of_slow_requests_is_the_one_computed_by_hand() -> None:
    """Prompts of 0.3 s in requests of 0.33 s, at half a replica; of the 9.9 s of 99 tokens 0.9 may be theirs."""
    cost = ReplicaCost(3e-4, 0.0, 0.0, full_s=1e9, step_s=0.01)
    mix = RequestMix(1000.0, 100.0)
    busy = 0.5 * 0.3 / 0.33
    distance = 0.1 * 99 * (0.9 - busy) ** 2 / (2 * 0.3 * busy)
    expected = (1 - math.sqrt(distance / (2 + distance))) / 2
    assert slow_share(cost, mix, 1, 0.1, 0.5) == pytest.approx(expected, rel=1e-6)
    assert slow_share(cost, mix, 4, 0.1, 0.5) < expected / 3
    assert slow_share(cost, mix, 1, 0.1, 1.0) == 1.0, "prompts leave no room at all"
    assert slow_share(cost, RequestMix(1000.0, 1.0), 1, 0.1, 0.9) == 0.0, "one token has no pace: a prefill pool"
    assert slow_share(cost, RequestMix(0.0, 100.0), 1, 0.1, 0.9) == 0.0, "no prompts are computed: a decode pool"


@given(st.floats(0, 60), st.floats(0, 60))
@settings(max_examples=60, deadline=None)
def test_the_fewest_replicas_carry_the_load_and_one_fewer_does_not(one: float, other: float) -> None:
    less, more = sorted((SLOW.replicas_for(one, MIX), SLOW.replicas_for(other, MIX)))
    assert SLOW.replicas_for(min(one, other), MIX) == less and SLOW.replicas_for(max(one, other), MIX) == more
    found = SLOW.replicas_for(one, MIX)
    assert found * SLOW.fill(MIX, found) >= one - 1e-6 or found == math.ceil(one / 0.3)
    assert found < 2 or (found - 1) * SLOW.fill(MIX, found - 1) < one


def test_an_absurd_load_is_answered_at_once() -> None:
    assert replicas_for(1e12, SLOW.cost, MIX, 4.0, 0.1) >= 1e12
    assert replicas_for(0.0, SLOW.cost, MIX, 4.0, 0.1) == 0


class Clock:
    """Step times of the same engine: products or weights, a fixed cost."""

    def seconds(self, batch: Batch) -> float:
        """Of one step."""
        tokens = batch.decode_rows + batch.prefill_tokens
        return max(0.01, tokens * 2.95e-4) + 1e-3 + batch.decode_context * 5.5e-8 + batch.prefill_pairs * 9e-9

    def swap_seconds(self, tokens: int) -> float:
        """Nothing is swapped here."""
        return 0.0


@pytest.mark.parametrize("replicas", [2, 4])
def test_the_engine_model_is_near_both_limits_at_that_load_and_far_beyond_them_above(replicas: int) -> None:
    fill = SLOW.fill(RequestMix(1000.0, 200.0), replicas)
    assert late_share(replicas, fill) < 0.02
    assert late_share(replicas, fill + 0.3) > 0.05


def late_share(replicas: int, load: float) -> float:
    """Share of 3,000 Poisson requests, prompts of 1,000 and outputs of 200 tokens in the mean, beyond either limit."""
    rng, now, jobs = random.Random(5), 0.0, []
    engines = [LeanEngine(Clock(), budget=8192, kv_tokens=300_000, max_seqs=256, now_s=0.0) for _ in range(replicas)]
    rate = load * replicas / SLOW.cost.request_s(1000.0, 200.0)
    for _ in range(3000):
        now += rng.expovariate(rate)
        job = Job(now, 1 + int(rng.expovariate(1 / 1000)), 2 + int(rng.expovariate(1 / 200)))
        for engine in engines:
            engine.run_until(now)
        min(engines, key=lambda one: one.waiting_tokens + 16 * one.in_flight).submit(job)
        jobs.append(job)
    for engine in engines:
        engine.run_until(now + 1e4)
    return sum(job.ttft_s > 4.0 or job.tpot_s > 0.1 for job in jobs) / len(jobs)


class Pool:
    """Replicas that share the load evenly and start at once, seen as the decision sees them."""

    def __init__(
        self, capacity: ReplicaCapacity, replicas: int, seed: int = 0, late: float = 0.0, **policy: int
    ) -> None:
        limits = {"min_replicas": 1, "max_replicas": 200} | policy
        self.capacity, self.rng, self.late, self.found = capacity, random.Random(seed), late, 0.0
        self.policy = ScalingPolicy(capacity=capacity, start_s=120.0, **limits)
        self.state, self.now_s, self.replicas = PoolState(), 0.0, replicas
        self.targets: list[int] = []

    def tick(
        self, load: float, *, noise: bool = True, known: Knowledge = Knowledge.FRESH, queued: RouterQueue | None = None
    ) -> Decision:
        mean = load / self.capacity.cost.request_s(MIX.prompt, MIX.output) * TICK_S
        count = max(0.0, self.rng.gauss(mean, math.sqrt(mean))) if noise else mean
        self.now_s += TICK_S
        serving = max(1, self.replicas)
        each = count / TICK_S / serving
        rates: dict[str, float | None] = {
            "finished_requests": each,
            "first_tokens": each,
            "prefix_hits": each * self.found,
        }
        rates |= {"prompt_tokens": each * (MIX.prompt + self.found), "generation_tokens": each * MIX.output}
        gauges: dict[Signal, float | None] = {
            Signal.RUNNING: float(load > 0),
            Signal.WAITING: 0.0,
            Signal.KV_USAGE: 0.1,
        }
        reading = EngineReading("vllm", gauges, {}, {}, (), ())
        silent = 0.0 if known is Knowledge.FRESH else 10.0
        firsts = {self.capacity.slo_ttft_s: each * (1 - self.late), math.inf: each}
        one = Observation("e", "p", known, "", silent, silent, reading, rates, serving_for_s=1e4, ttft_rates=firsts)
        self.state, decision = decide(self.state, [one] * serving, self.now_s, self.policy, queued)
        self.replicas = decision.target
        self.targets.append(decision.target)
        return decision

    def run(self, minutes: float, load: float, *, noise: bool = True) -> "Pool":
        for _ in range(int(minutes * 60 / TICK_S)):
            self.tick(load, noise=noise)
        return self


def turns(targets: Sequence[int]) -> int:
    """Changes of direction."""
    steps = [after - before for before, after in pairwise(targets) if after != before]
    return sum((one > 0) != (other > 0) for one, other in pairwise(steps))


@given(
    capacity=st.sampled_from((SLOW, FAST)), replicas=st.sampled_from((1, 2, 3)), share=st.floats(0.6, 1.05),
    seed=st.integers(0, 999),
)  # fmt: skip
@settings(max_examples=8, deadline=None, derandomize=True)
def test_a_flat_load_with_chance_makes_a_small_pool_turn_twice_at_most(
    capacity: ReplicaCapacity, replicas: int, share: float, seed: int
) -> None:
    """Around the edge between N and N-1, where chance alone moves what is asked for."""
    pool = Pool(capacity, replicas, seed).run(50, replicas * capacity.fill(MIX, replicas) * share)
    assert turns(pool.targets) <= 2


@pytest.mark.parametrize(
    ("token_s", "load", "gap"), [(3e-4, 3.3, 1 + 2 * math.sqrt(2 * 0.33 / 60 / 3.3)), (3e-3, 1.4, 1.5)]
)
def test_fewer_replicas_must_carry_two_deviations_of_chance_more_but_at_most_half(
    token_s: float, load: float, gap: float
) -> None:
    """Requests of 0.33 s give a minute's load of 3.3 a deviation of 0.19; those of 3.3 s would ask for 1.56 of 1.4."""
    capacity = ReplicaCapacity(ReplicaCost(token_s, 0.0, 0.0), 4e4 * token_s)
    decision = Pool(capacity, 6).run(9, load, noise=False).tick(load, noise=False)
    assert decision.outlook is not None and decision.outlook.forecast is not None
    surge = decision.outlook.forecast.upper
    assert decision.needs[-2].replicas == max(math.ceil(surge), capacity.replicas_for(load, MIX))
    assert decision.needs[-2].fits == max(math.ceil(gap * surge), capacity.replicas_for(gap * load, MIX))


@pytest.mark.parametrize(("queued", "counts"), [(18.0, False), (19.0, True)])
def test_a_queue_asks_for_replicas_of_its_own_beyond_half_the_first_tokens_limit(queued: float, counts: bool) -> None:
    """Requests of 0.11 s before two replicas: 18 of them wait for 0.99 s, 19 for 1.045 s; of 2 s half are allowed."""
    pool = Pool(FAST, 2).run(9, 1.2, noise=False)
    assert pool.replicas == 2
    outlook = pool.tick(1.2, noise=False, queued=RouterQueue(queued)).outlook
    assert outlook is not None and outlook.demand is not None and outlook.forecast is not None
    assert outlook.demand.backlog_s == pytest.approx(queued * 0.11, rel=0.01)
    extra = outlook.demand.backlog_s / 120 if counts else 0.0
    assert outlook.needs[0].value in [
        pytest.approx(each + extra) for each in (outlook.forecast.upper, outlook.forecast.point)
    ]


@pytest.mark.parametrize("replicas", [20, 64])
def test_a_flat_load_does_not_make_a_large_pool_turn(replicas: int) -> None:
    pool = Pool(SLOW, replicas).run(45, replicas * SLOW.fill(MIX, replicas) * 0.92)
    assert turns(pool.targets) <= 2
    assert turns(pool.targets[90:]) == 0


def test_more_load_never_asks_for_fewer_replicas() -> None:
    finals = [Pool(SLOW, 2).run(12, load, noise=False).targets[-1] for load in (0.2, 0.5, 1.0, 1.8, 3.0, 6.0)]
    assert finals == sorted(finals)
    assert finals[0] == 1 and finals[-1] >= 10


def test_one_tick_of_a_spike_is_not_followed_far_and_is_given_up_again() -> None:
    pool = Pool(SLOW, 3).run(20, 0.9, noise=False)
    before = pool.targets[-1]
    pool.tick(9.0, noise=False)
    pool.run(20, 0.9, noise=False)
    assert max(pool.targets) <= 3 * before
    assert pool.targets[-1] <= before + 1


def test_limits_and_unknown_hold_whatever_the_room_for_chance() -> None:
    pool = Pool(SLOW, 2, min_replicas=2, max_replicas=4).run(10, 6.0)
    assert set(pool.targets[3:]) == {4}
    assert set(pool.run(40, 0.0).targets[-30:]) == {2}
    other = Pool(SLOW, 2).run(10, 1.5, noise=False)
    held = [other.tick(0.0, known=Knowledge.STALE) for _ in range(10)]
    assert {one.target for one in held} == {other.targets[59]}
    assert Code.ALL_UNKNOWN_HOLD in {reason.code for reason in held[-1].reasons}


def test_a_young_pool_follows_a_sure_rise_before_it_is_saturated() -> None:
    ramp = (0.3, 0.6, 0.9, 1.2, 1.5, 1.8, 2.1)
    pool = Pool(SLOW, 2)
    for load in ramp:
        pool.tick(load, noise=False)
    assert pool.targets[-1] >= SLOW.replicas_for(ramp[-1], MIX) - 1
    flat = Pool(SLOW, 2).run(1, 1.0 * 2 * SLOW.fill(MIX, 2) * 0.9, noise=False)
    assert flat.targets[-1] == 2


@pytest.mark.parametrize(("ttft_s", "named"), [(0.2, True), (4.0, False)])
def test_first_tokens_that_no_replica_makes_timely_do_not_take_all_replicas(ttft_s: float, named: bool) -> None:
    """One in twenty is late on any number of replicas: the mean prompt takes longer than the limit, or a few do."""
    pool = Pool(ReplicaCapacity(SLOW.cost, ttft_s, 0.1), 2, late=0.05)
    decision = pool.run(30, 1.0, noise=False).tick(1.0, noise=False)
    assert max(pool.targets) == decision.target == 4, "a load of 1 on replicas three tenths full"
    assert decision.outlook is not None and decision.outlook.late_share == pytest.approx(0.05)
    said = [one.text for one in decision.reasons if one.code is Code.LIMIT_OUT_OF_REACH]
    assert said == (
        ["no number of replicas keeps the limits for the mean request: " + pool.capacity.unfit(MIX)] * named
    )
    assert Pool(pool.capacity, 2, late=0.005).run(30, 1.0, noise=False).targets[-1] == (4 if named else 3)


def test_late_first_tokens_add_replicas_before_the_load_asks_for_them() -> None:
    pool = Pool(FAST, 2, late=0.05)
    decision = pool.run(4, 1.0, noise=False).tick(1.0, noise=False)
    assert decision.target == decision.needs[-1].replicas == 5 > (decision.needs[-2].replicas or 0)
    assert "5 % of first tokens are late, 1 % may be: asks for 5" in decision.reasons[-1].text


def test_a_replica_that_goes_takes_its_share_of_the_prefix_cache_along() -> None:
    """Of 4,000 tokens 3,000 are found: one of two replicas holds 0.375 of that, 0.34 of the work a request takes."""
    plain, cached = Pool(FAST, 2), Pool(FAST, 2)
    cached.found = 3000.0
    fits = [pool.run(9, 1.2, noise=False).tick(1.2, noise=False).needs[-2].fits for pool in (plain, cached)]
    assert fits == [2, 3]
