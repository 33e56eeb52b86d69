"""The picker `content_home`: where loads hardly differ, a prompt's content says where it goes."""

from random import Random

import pytest

from tonnage_core.scheduling.pickers import HOME_REQUESTS, HOME_TOKENS
from tonnage_core.scheduling.profile import POLICIES
from tonnage_core.scheduling.scheduler import Scheduler
from tonnage_core.scheduling.types import Candidate, SchedulingRequest

PROMPT = 4_000
CHAINS = [[f"{i}".encode().rjust(16, b"0")] for i in range(200)]


def fleet(seed: int = 0, count: int = 4, **loads: int) -> Scheduler:
    scheduler = Scheduler(POLICIES["prefix"], Random(seed))
    for slot in range(count):
        scheduler.add(Candidate(f"e{slot}", slot, prefill_tokens=loads.get(f"e{slot}", 0)), 1 << 20)
    return scheduler


def place(scheduler: Scheduler, chain: list[bytes], prompt: int = PROMPT, adapter: str | None = None) -> str:
    """Where a prompt nobody has cached goes; nothing stays reserved."""
    found = scheduler.choose(SchedulingRequest("m", prompt, adapter=adapter), chain, float(prompt))
    assert found is not None
    decision, reservation = found
    reservation.release()
    scheduler.index.clear_slot(decision.chosen.slot)
    return decision.chosen.id


def test_routers_that_share_nothing_agree_while_loads_are_small() -> None:
    one, other = fleet(1), fleet(2, e0=2_000, e3=8_000)
    homes = [place(one, chain) for chain in CHAINS]
    assert homes == [place(other, chain) for chain in CHAINS]
    assert min(homes.count(f"e{i}") for i in range(4)) > 25


def test_an_endpoint_that_leaves_moves_its_own_prompts_alone() -> None:
    before = [place(fleet(), chain) for chain in CHAINS]
    after = [place(fleet(count=3), chain) for chain in CHAINS]
    assert all(old == new for old, new in zip(before, after, strict=True) if old != "e3")


@pytest.mark.parametrize(("prompt", "load"), [(100_000, HOME_TOKENS + 1), (1_000, 9_000)])
def test_work_that_takes_long_is_no_home(prompt: int, load: int) -> None:
    """Too many tokens for any prompt, or too many for so short a one."""
    assert {place(fleet(e0=load), chain, prompt) for chain in CHAINS} == {"e1", "e2", "e3"}


def test_in_a_busy_fleet_load_alone_decides() -> None:
    scheduler = fleet(e0=2_000, e1=1_000, e2=2_000, e3=2_000)
    for candidate in scheduler.candidates:
        candidate.requests = HOME_REQUESTS + 1
    assert {place(scheduler, chain) for chain in CHAINS} == {"e1"}


@pytest.mark.parametrize(
    ("field", "value"), [("gpu_speed", 0.5), ("pressure", 0.9), ("kv_utilisation", 0.95), ("cost", 3.0)]
)
def test_an_endpoint_worse_in_another_way_is_no_home(field: str, value: float) -> None:
    scheduler = fleet(e0=1_000, e1=1_000, e2=1_000)
    for candidate in scheduler.candidates:
        setattr(candidate, field, value if candidate.id != "e3" else {"gpu_speed": 1.0}.get(field, 0.0))
    assert {place(scheduler, chain) for chain in CHAINS} == {"e3"}


def test_holders_of_the_adapter_are_homes_before_others() -> None:
    scheduler = fleet()
    for candidate in scheduler.candidates:
        candidate.adapter_slots = 2
        if candidate.id in ("e1", "e2"):
            candidate.adapters.add("lora")
    assert {place(scheduler, chain, adapter="lora") for chain in CHAINS} == {"e1", "e2"}


def test_an_endpoint_that_must_evict_an_adapter_is_no_home() -> None:
    scheduler = fleet()
    for candidate in scheduler.candidates:
        candidate.adapter_slots = 1
        if candidate.id in ("e0", "e3"):
            candidate.adapters.add("other")
    assert {place(scheduler, chain, adapter="lora") for chain in CHAINS} == {"e1", "e2"}


def test_a_cached_prefix_comes_before_the_home() -> None:
    scheduler = fleet()
    chain = [*CHAINS[0], *CHAINS[1]]
    home = place(scheduler, chain)
    holder = next(c for c in scheduler.candidates if c.id != home)
    scheduler.index.insert(chain, holder.slot)
    found = scheduler.choose(SchedulingRequest("m", PROMPT), chain, PROMPT / 2)
    assert found is not None
    assert found[0].chosen is holder
