"""Families of GPU classes, prefill and decode pools, and warm data: the planner's memory fed tick by tick."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tonnage_core.autoscaling.engine_metrics import WANTED, read_engine
from tonnage_core.autoscaling.exposition import parse
from tonnage_core.autoscaling.observation import Attempt, Outcome
from tonnage_core.autoscaling.state_machine import Code
from tonnage_planner.documents import explain_fields
from tonnage_planner.fleet import Fleet
from tonnage_planner.settings import EndpointSettings, PlannerSettings
from tonnage_runtime.errors import SettingsError

MODEL = "meta-llama/Llama-3.1-8B"
H100, L40S = "H100-SXM-80GB", "L40S"
TICK_S = 10.0
PROMPT, OUTPUT = 1000, 200


@dataclass
class World:
    """Pools that obey their targets at once unless they are said not to; each replica counts its requests."""

    settings: PlannerSettings
    replicas: dict[str, int]
    output: dict[str, int] = field(default_factory=dict)
    stuck: frozenset[str] = frozenset()
    now_s: float = 1000.0
    finished: dict[str, float] = field(default_factory=dict)
    targets: dict[str, int] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    """Every reason of every decision."""

    def __post_init__(self) -> None:
        self.fleet = Fleet(self.settings)

    def urls(self, pool: str) -> list[str]:
        return [f"http://{pool}-{number}" for number in range(self.replicas[pool])]

    def run(self, seconds: float, rates: Mapping[str, float]) -> "World":
        """Ticks; `rates` are requests a second by pool."""
        for _ in range(int(seconds / TICK_S)):
            self.tick(rates)
        return self

    def tick(self, rates: Mapping[str, float]) -> None:
        self.now_s += TICK_S
        listed = [EndpointSettings(url=url, pool=pool) for pool in self.replicas for url in self.urls(pool)]
        self.fleet.list_endpoints(listed, self.now_s)
        for pool in self.replicas:
            for url in self.urls(pool):
                done = self.finished.get(url, 0.0) + rates.get(pool, 0.0) * TICK_S / max(1, self.replicas[pool])
                self.finished[url] = done
                page = self.page(pool, done)
                fails = pool in self.stuck
                reading = None if fails else read_engine(parse(page, WANTED))
                outcome = Outcome.UNREACHABLE if fails else Outcome.OK
                self.fleet.record(url, Attempt(self.now_s, outcome, reading))
        made = self.fleet.decide(self.now_s)
        self.targets = {pool: decision.target for pool, decision in made.items()}
        self.told |= {reason.text for decision in made.values() for reason in decision.reasons}
        for pool in self.replicas:
            self.replicas[pool] = self.targets[pool]

    def page(self, pool: str, done: float) -> str:
        output = self.output.get(pool, OUTPUT)
        return (
            f"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.1\n"
            f"vllm:prompt_tokens_total {done * PROMPT}\nvllm:generation_tokens_total {done * output}\n"
            f"vllm:request_success_total {done}\nvllm:time_to_first_token_seconds_count {done}\n"
        )

    def codes(self, pool: str) -> set[Code]:
        return {reason.code for reason in self.fleet.decided[pool].decision.reasons}


def family(**more: Any) -> PlannerSettings:
    classes = [
        {"pool": "h100", "gpu": H100, "usd_per_hour": 3.0, "most": 10},
        {"pool": "l40s", "gpu": L40S, "usd_per_hour": 0.6, "most": 4},
    ]
    given = {"classes": classes, "max_replicas": 20, "scale_down_after_s": 120, **more}
    return PlannerSettings.model_validate({"families": {MODEL: given}, "start_grace_s": 60})


def spread(world: World, load: float) -> dict[str, float]:
    """Requests a second that keep `load` H100s full, over the replicas that serve by what they carry."""
    slow = 0.0 if "l40s" in world.stuck else 0.33
    weights = {"h100": 1.0 * world.replicas["h100"], "l40s": slow * world.replicas["l40s"]}
    rate = load / 0.0404
    return {pool: rate * weight / sum(weights.values()) for pool, weight in weights.items()}


def grown(world: World, load: float, seconds: float = 900) -> World:
    for _ in range(int(seconds / TICK_S)):
        world.tick(spread(world, load))
    return world


def test_a_family_grows_where_the_load_is_cheapest_and_then_where_there_is_room() -> None:
    world = grown(World(family(), {"h100": 1, "l40s": 0}), 0.4)
    assert (world.targets["h100"], world.targets["l40s"]) == (1, 0), "what there is stays while it carries the load"
    grown(world, 0.9)
    assert any("4 more l40s" in text for text in world.told), "the cheaper class carries what is missing"
    assert world.targets["h100"] <= 1
    grown(world, 4.0)
    assert world.targets["l40s"] == 4
    assert world.targets["h100"] >= 3
    grown(world, 0.4, 1500)
    assert world.targets["h100"] == 0, "the dearest goes first once the load fits"
    assert 2 <= world.targets["l40s"] <= 4
    assert any("fewer h100: the dearest" in text for text in world.told)


def test_a_class_that_does_not_start_is_passed_over() -> None:
    world = World(family(retry_stuck_s=600), {"h100": 1, "l40s": 0}, stuck=frozenset({"l40s"}))
    grown(world, 0.5)
    grown(world, 1.5, 600)
    assert any("l40s passed over: its replicas did not start" in text for text in world.told)
    assert world.targets["h100"] >= 2
    assert world.targets[MODEL] <= world.targets["h100"] + 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param(
            {"families": {"a": {"classes": [{"pool": "a", "gpu": H100, "usd_per_hour": 1, "most": 1}]}}},
            "unknown model|a ",
            id="no such model",
        ),
        pytest.param(
            {
                "families": {MODEL: {"classes": [{"pool": "p", "gpu": H100, "usd_per_hour": 1, "most": 1}]}},
                "pairs": {"x": {"prefill": "p", "decode": "d"}},
            },
            "pool p is in more than one",
            id="twice",
        ),
    ],
)
def test_a_group_that_cannot_be_followed_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Fleet(PlannerSettings.model_validate(settings))


def pair() -> PlannerSettings:
    own = {"model": MODEL, "gpu": L40S, "max_replicas": 10, "scale_down_after_s": 120}
    pools = {"prefill": {**own, "min_replicas": 0}, "decode": {**own, "min_replicas": 0}}
    return PlannerSettings.model_validate(
        {"pools": pools, "pairs": {MODEL: {"prefill": "prefill", "decode": "decode"}}}
    )


def test_neither_pool_of_a_pair_shrinks_below_what_the_other_sends_it() -> None:
    world = World(pair(), {"prefill": 4, "decode": 4}, output={"prefill": 1})
    world.run(900, {"prefill": 30.0, "decode": 30.0})
    world.run(900, {"prefill": 30.0, "decode": 0.5})
    assert world.targets["decode"] >= 2, "prompts that are computed now are tokens to come"
    assert Code.OTHER_POOL in world.codes("decode")


def test_the_pools_of_a_pair_go_to_zero_and_come_back_together() -> None:
    world = World(pair(), {"prefill": 1, "decode": 0}, output={"prefill": 1})
    world.tick({})
    assert (world.targets["prefill"], world.targets["decode"]) == (1, 1)


def priced(**more: Any) -> PlannerSettings:
    own = {"gpu": H100, "max_replicas": 20, "usd_per_replica_hour": 3.0, **more}
    return PlannerSettings.model_validate({"pools": {MODEL: own}})


def test_the_explanation_shows_what_warm_replicas_cost_and_save() -> None:
    world = World(priced(usd_per_late_request=1.0), {MODEL: 2})
    world.run(300, {MODEL: 20.0})
    for _ in range(3):
        world.run(400, {MODEL: 20.0})
        world.run(100, {MODEL: 80.0})
    fleet = world.fleet
    seen = fleet.observations(world.now_s, MODEL)
    fields = explain_fields(fleet.decided[MODEL], fleet.policy_of(MODEL), seen, fleet.warm(MODEL))
    warm: Any = fields["warm"]
    assert warm.replicas >= 1, "surges that no forecast sees are worth a warm replica at this price"
    assert warm.idle_usd_per_hour == 3.0 * warm.replicas
    late = [one.late_requests_per_hour for one in warm.choices]
    assert late == sorted(late, reverse=True)
    assert late[0] > 0
    assert [one.idle_usd_per_hour for one in warm.choices] == [3.0 * one.replicas for one in warm.choices]
    unpriced = World(priced(), {MODEL: 2}).run(900, {MODEL: 20.0})
    table = unpriced.fleet.warm(MODEL)
    assert table is not None
    assert table.advice is None
    assert World(priced(), {MODEL: 1}).fleet.warm(MODEL) is None
