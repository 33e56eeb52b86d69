"""The in-process fleet: routing by the live router's code, equal results for equal seeds."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tonnage_core.engine.batch import Batch
from tonnage_core.engine.errors import BadEngineConfigError
from tonnage_core.engine.fleet import TOO_LONG, Fleet, FleetConfig, FleetResult
from tonnage_core.engine.trace_keys import TraceKeys, trace_chain, trace_keys
from tonnage_core.engine.types import EngineConfig
from tonnage_core.scheduling.profile import POLICIES
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
    assert _run("prefix", seed=0).decisions_sha256 != _run("prefix", seed=1).decisions_sha256


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
