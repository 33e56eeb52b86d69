"""A planner that starts again remembers its targets; a store that is gone or damaged costs only the memory."""

import pytest

from tonnage_core.autoscaling.state_machine import PoolState
from tonnage_planner.fleet import Fleet
from tonnage_planner.saved_states import KEY, SavedStates
from tonnage_planner.settings import EndpointSettings, PlannerSettings
from tonnage_runtime.clock import ManualClock
from tonnage_runtime.memory_store import MemoryStore
from tonnage_runtime.store import StoreUnavailableError

ENDPOINTS = [EndpointSettings(url="http://a", model="m")]


def listed(states: dict[str, PoolState] | None = None) -> Fleet:
    """A fleet with one pool, `m`."""
    fleet = Fleet(PlannerSettings())
    fleet.restore(states or {})
    fleet.list_endpoints(ENDPOINTS, 0.0)
    return fleet


async def test_the_target_outlives_a_restart() -> None:
    clock = ManualClock(1000.0)
    store = MemoryStore(clock)
    saved = SavedStates(store, clock, interval_s=10)
    await saved.save(listed({"m": PoolState(target=9, changed_at_s=900.0)}))
    clock.advance(30)
    again = Fleet(PlannerSettings())
    await saved.restore(again)
    again.list_endpoints(ENDPOINTS, clock.monotonic())
    assert again.states["m"].target == 9
    decided = again.decide(clock.monotonic())["m"]
    assert decided.target == 9, "one listed endpoint that is not known yet gives nothing up"


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"saved_wall_s": 1, "pools": {"m": {"schema": "x"}}}'])
async def test_a_damaged_document_is_set_aside(body: bytes) -> None:
    clock = ManualClock(1000.0)
    store = MemoryStore(clock)
    await store.set(KEY, body)
    fleet = Fleet(PlannerSettings())
    await SavedStates(store, clock, interval_s=10).restore(fleet)
    fleet.list_endpoints(ENDPOINTS, 0.0)
    assert fleet.states["m"].target is None


class Gone(MemoryStore):
    """A store that does not answer."""

    async def get(self, key: str) -> bytes | None:
        raise StoreUnavailableError("redis", "refused")

    async def set(self, key: str, value: bytes, *, ttl_s: float | None = None) -> None:
        raise StoreUnavailableError("redis", "refused")


async def test_a_store_that_is_gone_stops_nothing() -> None:
    clock = ManualClock(1000.0)
    saved = SavedStates(Gone(clock), clock, interval_s=10)
    fleet = Fleet(PlannerSettings())
    await saved.restore(fleet)
    fleet.list_endpoints(ENDPOINTS, 0.0)
    fleet.decide(1.0)
    await saved.save(fleet)


def test_a_pool_whose_gpu_is_named_is_forecast_and_an_unknown_model_is_not() -> None:
    settings = PlannerSettings.model_validate(
        {
            "pools": {
                "meta-llama/Llama-3.1-8B": {"gpu": "H100-SXM-80GB", "max_num_batched_tokens": 512},
                "nobody/knows": {"gpu": "H100-SXM-80GB"},
                "plain": {},
            }
        }
    )
    fleet = Fleet(settings)
    known = fleet.policy_of("meta-llama/Llama-3.1-8B").capacity
    assert known is not None
    assert 1e-5 < known.cost.token_s < 1e-4
    assert fleet.policy_of("nobody/knows").capacity is None
    assert fleet.policy_of("plain").capacity is None
