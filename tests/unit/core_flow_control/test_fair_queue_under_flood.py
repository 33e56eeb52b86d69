"""Two engines on simulated time, one prompt each at a time: what a tenant's flood does to a calm one's wait."""

import heapq
import random
import statistics

import pytest

from tonnage_core.flow_control.fair_queue import FairQueue

Prompt = tuple[float, str, int]
"""When it came, whose it is, tokens."""
SECONDS = 60.0
BURST_TOKENS = 264 * 6256.0
"""A minute of the flooding tenant's quota, which is a tenth above its share of 4 prompts a second."""


def compute_s(tokens: int) -> float:
    """Llama-3.1-8B on an H200: 26 us a token, attention growing with the prompt, and one step of answers."""
    return (tokens + tokens * tokens / 2 / 26_624) * 26e-6 + 0.012


def arrivals(rng: random.Random, tenant: str, rate_rps: float) -> list[Prompt]:
    found: list[Prompt] = []
    at = rng.expovariate(rate_rps)
    while at < SECONDS:
        found.append((at, tenant, rng.randint(4000, 8000)))
        at += rng.expovariate(rate_rps)
    return found


def within_quota(prompts: list[Prompt]) -> list[Prompt]:
    left, last, kept = BURST_TOKENS, 0.0, []
    for at, tenant, tokens in prompts:
        left, last = min(BURST_TOKENS, left + (at - last) * BURST_TOKENS / 60), at
        if tokens <= left:
            left -= tokens
            kept.append((at, tenant, tokens))
    return kept


def calm_tenants_p99_s(seed: int, flood_rps: float) -> float:
    rng = random.Random(seed)
    coming = sorted(within_quota(arrivals(rng, "flood", flood_rps)) + arrivals(rng, "calm", 2.0))
    queue: FairQueue[Prompt] = FairQueue(100_000, lambda _: True)
    running: list[tuple[float, Prompt]] = []
    waits = []

    def fill(now: float) -> None:
        while len(running) < 2 and (prompt := queue.pop()) is not None:
            heapq.heappush(running, (now + compute_s(prompt[2]), prompt))

    while coming or running:
        if running and (not coming or running[0][0] <= coming[0][0]):
            now, done = heapq.heappop(running)
            if done[1] == "calm":
                waits.append(now - done[0])
        else:
            prompt = coming.pop(0)
            now = prompt[0]
            queue.push(prompt, prompt[1], cost=prompt[2], deadline=now + 30)
        fill(now)
    waits.sort()
    return waits[int(len(waits) * 0.99)]


@pytest.mark.parametrize("first_seed", [0, 100, 200])
def test_ten_times_a_share_slows_a_calm_tenant_by_less_than_a_fifth(first_seed: int) -> None:
    seeds = range(first_seed, first_seed + 9)
    flooded, calm = (statistics.median(calm_tenants_p99_s(seed, rate) for seed in seeds) for rate in (40.0, 4.0))
    assert flooded < 1.2 * calm
