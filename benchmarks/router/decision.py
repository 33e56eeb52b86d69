"""Time to match, choose and reserve, by the number of endpoints, in process."""

import random
import statistics
import time

from tonnage_core.prefix_index.block_hash import hash_bytes, seed_hash
from tonnage_core.scheduling import POLICIES, Candidate, Scheduler, SchedulingRequest


def measure(endpoints: int, requests: int) -> float:
    """Median microseconds of a decision over `endpoints`, 4 KiB prompts, eight in flight."""
    scheduler = Scheduler(POLICIES["prefix"], random.Random(0))
    for slot in range(endpoints):
        scheduler.add(Candidate(f"e{slot}", slot, kv_utilisation=0.5), 8 << 20)
    seed = seed_hash("m", None, None)
    chains = [hash_bytes(seed, b"%d " % k * 4096, 512)[:8] for k in range(256)]
    held, times = [], []
    for number in range(requests):
        request = SchedulingRequest("m", 1000, 64)
        begun = time.perf_counter()
        found = scheduler.choose(request, chains[number % 256], 128.0)
        times.append(time.perf_counter() - begun)
        assert found is not None
        held.append(found[1])
        if len(held) > 8:
            held.pop(0).release()
    return 1e6 * statistics.median(times)
