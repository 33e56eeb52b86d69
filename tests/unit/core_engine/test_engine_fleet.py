"""The in-process fleet: routing by the live router's code, equal results for equal seeds."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tonnage_core.engine.adapter_mix import AdapterMix
from tonnage_core.engine.batch import Batch
from tonnage_core.engine.errors import BadEngineConfigError
from tonnage_core.engine.fleet import TOO_LONG, WATCH_S, Fleet, FleetConfig, FleetResult
from tonnage_core.engine.trace_keys import TraceKeys, trace_chain, trace_keys
from tonnage_core.engine.types import EngineConfig
from tonnage_core.prefix_index.index import ENTRY_BYTES
from tonnage_core.scheduling.hold import RETRY_S, HoldRule
from tonnage_core.scheduling.profile import POLICIES
from tonnage_core.slo import Slo
from tonnage_core.traces import TraceRequest

ENGINE = EngineConfig(num_blocks=2000, max_model_len=16384, max_num_seqs=64, max_num_batched_tokens=2048)


class Linear:
    """A millisecond a step and ten microseconds a token."""

    def seconds(self, batch: Batch) -> float:
        return 0.001 + 1e-5 * (batch.prefill_tokens + batch.decode_rows)

    def swap_seconds(self, tokens: int) -> float:
        return 0.0


def _sessions(count: int, turns: int) -> list[TraceRequest]:
    """Conversations that grow by one block a turn, taking turns."""
    requests: list[TraceRequest] = []
    for turn in range(turns):
        for session in range(count):
            ids = tuple(1000 * session + place for place in range(4 + turn))
            requests.append(TraceRequest(len(requests), len(requests) * 0.02, 512 * len(ids) - 100, 40, ids))
    return requests


def _run(policy: str, seed: int = 0, requests: list[TraceRequest] | None = None, **changes: Any) -> FleetResult:
    config = FleetConfig(replicas=4, engine=ENGINE, profile=POLICIES[policy], model="m", seed=seed)
    fleet = Fleet(replace(config, **changes), Linear(), Random(seed))
    return fleet.run(_sessions(6, 5) if requests is None else requests)


def test_two_runs_with_one_seed_decide_and_count_the_same() -> None:
    first, second = _run("prefix"), _run("prefix")
    assert first.decisions_sha256 == second.decisions_sha256
    assert first.counters == second.counters
    assert first.records == second.records


def test_another_seed_decides_otherwise() -> None:
    """Ties of load are broken at random; `prefix` breaks them by content, whatever the seed."""
    assert _run("least_load", seed=0).decisions_sha256 != _run("least_load", seed=1).decisions_sha256
    assert _run("prefix", seed=0).decisions_sha256 == _run("prefix", seed=1).decisions_sha256


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_serves_every_request(policy: str) -> None:
    result = _run(policy)
    assert [record.outcome for record in result.records] == ["ok"] * 30
    assert all(record.output_tokens == 40 and len(record.gaps_s) == 39 for record in result.records)
    assert result.gpu_hours == pytest.approx(4 * result.duration_s / 3600)


def test_prefix_routing_hits_more_than_round_robin() -> None:
    turns = _sessions(5, 12)
    by_prefix, in_turn = (_run(policy, requests=turns).counters for policy in ("prefix", "round_robin"))
    assert by_prefix.hit_tokens > 1.3 * in_turn.hit_tokens


def test_arrivals_at_twice_the_rate_take_half_the_time() -> None:
    slow, fast = _run("round_robin"), _run("round_robin", rate_scale=2.0)
    assert fast.records[-1].intended_s == pytest.approx(slow.records[-1].intended_s / 2)


def test_a_request_that_fits_no_engine_is_an_error_of_its_own_and_not_lost() -> None:
    long = TraceRequest(0, 0.0, 16384, 10, tuple(range(32)))
    result = _run("prefix", requests=[long, replace(long, index=1, input_length=512, hash_ids=(0,))])
    assert [record.outcome for record in result.records] == [TOO_LONG, "ok"]


def test_no_requests_give_an_empty_result() -> None:
    result = _run("prefix", requests=[])
    assert result.records == ()
    assert result.duration_s == 0


def test_block_keys_of_prompts_agree_exactly_as_far_as_their_trace_blocks_do() -> None:
    one = TraceRequest(0, 0.0, 1500, 1, (1, 2, 3))
    two = TraceRequest(1, 0.0, 2000, 1, (1, 2, 4, 5))
    keys = [list(trace_keys(request, trace_chain(request, b"seed"), 16)) for request in (one, two)]
    assert [len(each) for each in keys] == [93, 125]
    assert keys[0][:64] == keys[1][:64]
    assert not set(keys[0][64:]) & set(keys[1][64:])


def test_block_keys_can_be_picked_by_place() -> None:
    keys = TraceKeys([b"a" * 16, b"b" * 16], 32, 40)
    assert [keys[place] for place in range(40)] == list(keys)
    assert list(keys[30:34]) == list(keys)[30:34]
    assert keys[-1] == list(keys)[-1]
    with pytest.raises(IndexError, match="block 40 of 40"):
        keys[40]


def test_a_block_size_that_does_not_divide_the_traces_is_refused() -> None:
    with pytest.raises(BadEngineConfigError, match="block_size 48 must divide the trace's blocks of 512 tokens"):
        trace_keys(TraceRequest(0, 0.0, 600, 1, (1, 2)), [b"a" * 16, b"b" * 16], 48)


def test_long_prompts_go_to_the_replicas_for_them_and_short_ones_elsewhere() -> None:
    lengths = [(400, 9000)[n % 2] for n in range(20)]
    requests = [
        TraceRequest(n, n * 0.1, size, 5, tuple(range(100 * n, 100 * n - (-size // 512))))
        for n, size in enumerate(lengths)
    ]
    result = _run("least_load", requests=requests, long_replicas=1)
    assert [counters.finished for counters in result.replicas][3] == 10
    assert sum(counters.prompt_tokens for counters in result.replicas[:3]) == 10 * 400


def test_requests_of_a_conversation_keep_their_adapter_and_the_router_spreads_by_residency() -> None:
    mix = AdapterMix(6, zipf=1.0, seed=3)
    turns = _sessions(30, 3)
    asked = [mix.of(request) for request in turns]
    assert asked[:30] == asked[30:60] == asked[60:]
    assert len(set(asked)) > 2
    engine = replace(ENGINE, adapter_slots=2, adapter_host_slots=6)
    by_adapter = _run("prefix", requests=turns, engine=engine, adapters=mix).counters
    in_turn = _run("round_robin", requests=turns, engine=engine, adapters=mix).counters
    assert 0 < by_adapter.adapter_loads < in_turn.adapter_loads


def test_equal_prompts_of_two_adapters_share_no_block() -> None:
    same = [TraceRequest(n, n * 1.0, 2048, 5, (7, 8, 9, 10)) for n in range(2)]

    class Alternating(AdapterMix):
        def of(self, request: TraceRequest) -> str:
            return f"adapter-{request.index}"

    engine = replace(ENGINE, adapter_slots=2, adapter_host_slots=2)
    assert _run("prefix", requests=same, engine=engine, adapters=Alternating(2)).counters.hit_tokens == 0
    assert _run("prefix", requests=same).counters.hit_tokens > 0


def test_fleets_that_cannot_work_are_refused() -> None:
    with pytest.raises(BadEngineConfigError, match="leave at least one for short ones"):
        _run("prefix", long_replicas=4)
    with pytest.raises(BadEngineConfigError, match="set adapter_slots"):
        _run("prefix", adapters=AdapterMix(3))
    with pytest.raises(BadEngineConfigError, match="at least 1 adapter"):
        AdapterMix(0)


class HalfSpeed(Linear):
    def seconds(self, batch: Batch) -> float:
        return 2 * super().seconds(batch)


def _cold(count: int, every_s: float) -> list[TraceRequest]:
    """Prompts that share nothing, one after another at random moments."""
    rng, at, requests = Random(7), 0.0, []
    for number in range(count):
        at += rng.expovariate(1 / every_s)
        length = rng.randrange(500, 6000)
        ids = tuple(range(20 * number, 20 * number + -(-length // 512)))
        requests.append(TraceRequest(number, at, length, rng.randrange(20, 120), ids))
    return requests


@pytest.mark.parametrize("load", [0.6, 0.75, 0.9])
def test_an_engine_at_half_speed_gets_half_of_a_peers_tokens_without_anybody_saying_so(load: float) -> None:
    config = FleetConfig(replicas=4, engine=ENGINE, profile=POLICIES["prefix"], model="m")
    fleet = Fleet(config, [HalfSpeed(), Linear(), Linear(), Linear()], Random(0))
    tokens_s = 0.0325  # of a mean prompt at full speed
    result = fleet.run(_cold(1500, tokens_s / 3.5 / load))
    slow, *peers = (replica.query_tokens + replica.generation_tokens for replica in result.replicas)
    assert 0.4 <= slow / (sum(peers) / len(peers)) <= 0.6


@pytest.mark.parametrize(("index_bytes", "most"), [(8 << 20, 2000 * 16 // 512), (ENTRY_BYTES * 5, 5)])
def test_the_router_remembers_no_more_than_an_engine_s_cache_nor_its_own_bound(index_bytes: int, most: int) -> None:
    config = FleetConfig(replicas=1, engine=ENGINE, profile=POLICIES["prefix"], index_bytes=index_bytes)
    fleet = Fleet(config, Linear(), Random(0))
    fleet.run(_sessions(20, 4))
    assert fleet._router.index.blocks(0) == most


class LikeAGpu(Linear):
    """20 ms a step, 40,000 prompt tokens a second."""

    def seconds(self, batch: Batch) -> float:
        return 0.02 + 2.5e-5 * (batch.prefill_tokens + batch.decode_rows)


class SlowSteps(Linear):
    """200 ms a step, 40,000 prompt tokens a second."""

    def seconds(self, batch: Batch) -> float:
        return 0.2 + 2.5e-5 * (batch.prefill_tokens + batch.decode_rows)


def test_held_prompts_leave_short_answers_their_pace_and_still_meet_their_own_limit() -> None:
    """Short answers, one every second, and long prompts that come in the midst of some of them."""
    slo = Slo(3000.0, 50.0)
    short = [TraceRequest(0, float(n), 200, 12, (n,)) for n in range(20)]
    long = [
        TraceRequest(0, 2.0 * n + 0.1, 16_000, 20, tuple(range(9_000 + 40 * n, 9_032 + 40 * n))) for n in range(1, 10)
    ]
    trace = [replace(r, index=i) for i, r in enumerate(sorted(short + long, key=lambda r: r.arrival_s))]
    config = FleetConfig(replicas=1, engine=ENGINE, profile=POLICIES["prefix"], model="m")
    fleets = [Fleet(replace(config, hold=rule), LikeAGpu(), Random(0)) for rule in (None, HoldRule(slo))]
    at_once, held = (fleet.run(trace) for fleet in fleets)
    broken = [sum((r.tpot_s or 0.0) > 0.05 for r in result.records) for result in (at_once, held)]
    assert broken == [9, 0]
    waited = [r for r in held.records if r.sent_s is not None and r.sent_s > r.intended_s]
    assert [r.prompt_tokens for r in waited] == [16_000] * 9
    assert all((r.ttft_s or 9.0) < 3.0 for r in waited)
    ends = [r.last_s or 0.0 for r in held.records]
    assert all(any(0 <= (r.sent_s or 0.0) - end <= WATCH_S for end in ends) for r in waited), "once an answer has ended"
    assert all(r.sent_s == r.intended_s for r in at_once.records)
    pace = fleets[1]._replicas[0].pace.tokens_per_s
    assert pace == pytest.approx(16_000 / 0.56), "eight steps; what a prompt waited before it was sent does not count"


@pytest.mark.parametrize("gap_s", [0.1, 1.0])
def test_nothing_is_held_past_its_share_however_dense_arrivals_are(gap_s: float) -> None:
    """The answer that a long prompt would break lasts 6 s; a tenth of a second of the prompt's limit is left to it."""
    others = [TraceRequest(0, 0.35 + gap_s * n, 20, 4_000, (9_000 + n,)) for n in range(round(5 / gap_s))]
    short, long = TraceRequest(0, 0.0, 200, 30, (1,)), TraceRequest(0, 0.3, 40_000, 5, tuple(range(100, 179)))
    trace = [replace(r, index=i) for i, r in enumerate((short, long, *others))]
    engine = replace(ENGINE, num_blocks=20_000, max_model_len=60_000, max_num_batched_tokens=8_192)
    config = FleetConfig(replicas=1, engine=engine, profile=POLICIES["prefix"], hold=HoldRule(Slo(1000.0), 0.5))
    records = Fleet(config, SlowSteps(), Random(0)).run(trace).records
    waited = {r.index: r.sent_s - r.intended_s for r in records if r.sent_s is not None and r.sent_s > r.intended_s}
    assert list(waited) == [1] and 0.45 < waited[1] <= 0.5 + RETRY_S + gap_s
