"""Workloads: the mix asked for, prefixes that are shared exactly, sessions that grow."""

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from tonnage_core.benchmarking.lengths import Lengths, parse_lengths, resampled, usage_log
from tonnage_core.benchmarking.workload import (
    BLOCK,
    Mix,
    PrefixTree,
    RequestClass,
    Sessions,
    as_planned,
    plan_requests,
    zipf,
)
from tonnage_core.errors import BadInputError
from tonnage_core.slo import percentile
from tonnage_core.traces import TraceRequest

SMALL = (RequestClass("small", 1.0, parse_lengths("constant:100"), parse_lengths("constant:10")),)


@pytest.mark.parametrize(
    ("text", "lowest", "middle", "highest"),
    [
        ("constant:512", 512, 512, 512),
        ("uniform:100-300", 100, 200, 300),
        ("lognormal:1000,4000", 100, 1000, 12_000),
        ("histogram:10=1,20=2", 10, 20, 20),
    ],
)
def test_lengths_follow_their_distribution(text: str, lowest: int, middle: int, highest: int) -> None:
    rng, lengths = Random(5), parse_lengths(text)
    drawn = sorted(lengths.draw(rng) for _ in range(4001))
    assert drawn[2000] == pytest.approx(middle, rel=0.08)
    assert lowest <= drawn[0] <= drawn[-1] <= highest
    assert lengths.mean == pytest.approx(sum(drawn) / 4001, rel=0.05)
    if text.startswith("lognormal"):
        assert percentile([float(each) for each in drawn], 99) == pytest.approx(4000, rel=0.15)


@pytest.mark.parametrize(
    "text", ["", "constant:x", "constant:0", "uniform:9-2", "lognormal:5,2", "histogram:1=-1", "histogram:", "gauss:1"]
)
def test_lengths_that_are_none_are_refused_with_the_forms(text: str) -> None:
    with pytest.raises(BadInputError, match=r"lognormal:P50,P99|tokens are from"):
        parse_lengths(text)


def test_logged_lengths_are_drawn_again_and_an_empty_log_is_refused() -> None:
    rng = Random(1)
    assert {resampled([3, 9]).draw(rng) for _ in range(50)} == {3, 9}
    with pytest.raises(BadInputError, match="empty"):
        resampled([])


def test_a_prefix_tree_shares_whole_paths_and_only_those() -> None:
    mix = Mix(SMALL, prefix=PrefixTree(BLOCK * 4, share=1.0, depth=2, branching=3))
    planned = plan_requests(mix, [float(n) for n in range(300)], Random(2))
    firsts = Counter(each.request.hash_ids[:2] for each in planned)
    paths = Counter(each.request.hash_ids[:4] for each in planned)
    assert len(firsts) == 3
    assert len(paths) == 9
    assert all(each.request.input_length == 4 * BLOCK + 100 for each in planned)
    own = [block for each in planned for block in each.request.hash_ids[4:]]
    assert len(set(own)) == len(own), "what is not shared is shared by nobody"
    assert len({block for path in paths for block in path}) == 3 * 2 + 9 * 2, "blocks of different nodes differ"


def test_only_the_share_asked_for_has_the_prefix() -> None:
    mix = Mix(SMALL, prefix=PrefixTree(BLOCK, share=0.25))
    planned = plan_requests(mix, [float(n) for n in range(2000)], Random(2))
    assert sum(each.request.input_length > 100 for each in planned) / 2000 == pytest.approx(0.25, abs=0.03)


def test_each_turn_of_a_session_begins_with_the_one_before() -> None:
    mix = Mix(SMALL, sessions=Sessions(3, 5.0))
    planned = plan_requests(mix, [0.0, 1.0, 2.0], Random(4))
    assert [each.request.index for each in planned] == list(range(9))
    times = [each.request.arrival_s for each in planned]
    assert times == sorted(times)
    for session in range(3):
        turns = sorted((each for each in planned if each.session == session), key=lambda each: each.turn)
        for before, after in pairwise(turns):
            kept = before.request.hash_ids
            assert after.request.hash_ids[: len(kept)] == kept
            assert after.request.input_length > before.request.input_length
            assert after.request.arrival_s > before.request.arrival_s
    assert all(-(-p.request.input_length // BLOCK) == len(p.request.hash_ids) for p in planned)


def test_tenants_adapters_classes_and_cancellations_come_in_the_shares_asked_for() -> None:
    classes = (
        RequestClass("chat", 3.0, parse_lengths("constant:10"), parse_lengths("constant:5")),
        RequestClass("batch", 1.0, parse_lengths("constant:99"), parse_lengths("constant:5")),
    )
    mix = Mix(classes, tenants={"a": 1, "b": 4}, adapters=zipf(["x", "y"], 1.0), cancel_share=0.1, cancel_after_s=0.5)
    planned = plan_requests(mix, [n / 10 for n in range(5000)], Random(9))
    kinds = Counter(each.kind for each in planned)
    assert kinds["chat"] / 5000 == pytest.approx(0.75, abs=0.03)
    assert Counter(each.tenant for each in planned)["b"] / 5000 == pytest.approx(0.8, abs=0.03)
    assert Counter(each.adapter for each in planned)["x"] / 5000 == pytest.approx(2 / 3, abs=0.03)
    assert sum(each.cancel_after_s == 0.5 for each in planned) / 5000 == pytest.approx(0.1, abs=0.02)
    assert planned == plan_requests(mix, [n / 10 for n in range(5000)], Random(9))


def test_a_trace_keeps_its_requests_and_takes_the_mix() -> None:
    trace = [TraceRequest(n, float(n), 600, 5, (n, n + 1)) for n in range(4)]
    planned = as_planned(trace, Mix(SMALL, tenants={"t": 1.0}), Random(1))
    assert [each.request for each in planned] == trace
    assert {each.tenant for each in planned} == {"t"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"classes": ()}, "classes"),
        ({"prefix": PrefixTree(BLOCK, depth=2)}, "prefix tree"),
        ({"sessions": Sessions(0, 1.0)}, "sessions"),
        ({"cancel_share": 1.5}, "cancellations"),
    ],
)
def test_a_mix_that_is_none_is_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(BadInputError, match=says):
        Mix(**{"classes": SMALL, **given})  # type: ignore[arg-type]


def test_lengths_come_from_a_log_of_usage_and_its_bad_line_is_named() -> None:
    log = b'{"usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n\n{"input_tokens": 9, "output_tokens": 4}\n'
    found = usage_log(log, "log")
    assert found is not None
    assert (found[0].numbers, found[1].numbers) == ((7.0, 9.0), (3.0, 4.0))
    assert usage_log(b'{"timestamp": 0, "input_length": 5, "output_length": 2}\n', "trace") is None
    for bad in (b"nonsense", b'{"usage": {"prompt_tokens": 0, "completion_tokens": 3}}', b'{"usage": 3}'):
        with pytest.raises(BadInputError, match="line 4"):
            usage_log(log + bad, "log")


def test_runs_of_different_seeds_share_no_block() -> None:
    tree = PrefixTree(128, depth=2, branching=2)
    lengths = Lengths("constant", (200.0,))
    mix = Mix((RequestClass("all", 1.0, lengths, lengths),), prefix=tree)
    runs = [
        {block for each in plan_requests(mix, [0.0, 1.0, 2.0], Random(seed)) for block in each.request.hash_ids}
        for seed in (1, 2)
    ]
    assert not runs[0] & runs[1]
