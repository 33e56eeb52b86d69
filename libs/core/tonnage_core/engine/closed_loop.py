"""A closed loop on one engine in virtual time: what a client of fixed concurrency sees of an undisturbed engine."""

import heapq
from collections.abc import Sequence
from dataclasses import replace

from tonnage_core.engine.batch import StepClock
from tonnage_core.engine.engine import Engine
from tonnage_core.engine.trace_keys import trace_chain, trace_keys
from tonnage_core.engine.types import EngineConfig, EngineRequest
from tonnage_core.prefix_index.block_hash import seed_hash
from tonnage_core.slo import RequestRecord
from tonnage_core.traces import TraceRequest

STAGGER_S = 0.02
"""Between the first requests of two users, so that their rounds do not keep step."""
_MODEL = "closed-loop"


def closed_loop(
    config: EngineConfig, step_time: StepClock, requests: Sequence[TraceRequest], users: int
) -> tuple[RequestRecord, ...]:
    """Records of `requests`, sent in order by `users` (at least 1) without think time; seconds from the start."""
    engine = Engine(config, step_time, model=_MODEL, seed=0, keep_gaps=False)
    seed = seed_hash(_MODEL, None, None)
    ready = [user * STAGGER_S for user in range(min(users, len(requests)))]
    records: list[RequestRecord] = []
    now = 0.0
    while True:
        while ready and len(records) < len(requests) and (ready[0] <= now or engine.next_event() is None):
            at = heapq.heappop(ready)
            request, number = requests[len(records)], len(records)
            engine.submit(_asked(request, number, seed, config.block_size), at)
            records.append(RequestRecord(number, request.input_length, intended_s=at, sent_s=at))
            now = max(now, at)
        step = engine.step(now)
        if step is None:
            return tuple(records)
        now = step.end_s
        for row in step.rows:
            number = int(row.request_id)
            if row.new_tokens and records[number].first_s is None:
                records[number] = replace(records[number], first_s=now)
            if row.finish_reason is not None:
                tokens = requests[number].output_length
                records[number] = replace(records[number], last_s=now, output_tokens=tokens)
                heapq.heappush(ready, now)


def _asked(request: TraceRequest, number: int, seed: bytes, block_size: int) -> EngineRequest:
    return EngineRequest(
        request_id=str(number),
        prompt_tokens=request.input_length,
        output_tokens=request.output_length,
        block_hashes=trace_keys(request, trace_chain(request, seed), block_size),
    )
