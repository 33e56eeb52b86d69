"""What flatters a run: failures beside a good percentile, uncounted tokens, empty answers, a dropped warm-up."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from tests.unit.loadgen.conftest import usage
from tonnage_core.benchmarking.lengths import parse_lengths
from tonnage_core.benchmarking.workload import Mix, Planned, RequestClass
from tonnage_core.errors import BadInputError
from tonnage_core.slo import RequestRecord, Slo
from tonnage_core.traces import TraceRequest
from tonnage_loadgen.answers import ChatStream
from tonnage_loadgen.bench_options import _keys
from tonnage_loadgen.bench_points import Deployment, point_run, points_csv
from tonnage_loadgen.bench_run import Judging, document, meets_slo
from tonnage_loadgen.bench_spec import BenchSpec
from tonnage_loadgen.exchange import Exchange, Outcome
from tonnage_loadgen.records import record_of
from tonnage_loadgen.shard import Endpoint, Shard, ShardResult, Users
from tonnage_loadgen.sse import EVENT_LIMIT, CompletionStream
from tonnage_loadgen.verdict import ClientVerdict

FINE = ClientVerdict(0.0, 0.0, 0.0, 0.0, 0.0, 0.01, 0.1, 1.0, bound=False, reason=None)
ASKED = TraceRequest(0, 0.0, 100, 8, (1, 2), 64)


def sse(event: dict[str, object]) -> bytes:
    return b"data: " + orjson.dumps(event) + b"\n\n"


def record(n: int, ttft: float = 0.1, tokens: int | None = 11, gap: float = 0.01, outcome: str = "ok") -> RequestRecord:
    first = n + ttft
    return RequestRecord(n, 100, n, n, n, first, first + 10 * gap, [gap] * 10, tokens, None, outcome)


def judged(records: list[RequestRecord], warmup_s: float = 0.0, users: int | None = None) -> dict[str, object]:
    planned = tuple(Planned(TraceRequest(r.index, r.intended_s, 100, 11, (1, 2), 64), "all") for r in records)
    result = ShardResult(tuple(records), FINE, 1, 0, 1.0, ())
    closed = None if users is None else Users(users, (0.0,) * len(planned))
    return document(Shard(Endpoint("http://h", "m"), planned, closed), [result], Judging(Slo(1000, 50, 90), warmup_s))


def outcome_of(*events: bytes, chat: bool = False) -> RequestRecord:
    exchange = Exchange(0, 0.0, ChatStream() if chat else CompletionStream())
    exchange.status = 200
    for event in events:
        exchange.stream.feed(event, 1.0)
    exchange.settle()
    return record_of(exchange, ASKED, 0.0, ASKED.output_length)


def test_a_bench_point_is_of_the_time_when_all_users_were_busy() -> None:
    """Two users, one second apart at the start; a token takes 10 ms alone and 20 ms beside another user's."""
    alone, beside = 0.01, 0.02
    spans = [(0.0, 1.0, alone), (1.0, 2.0, beside), (1.0, 2.0, beside), (2.0, 3.0, beside), (2.0, 3.5, beside),
             (3.0, 4.0, beside), (3.5, 4.5, alone)]  # fmt: skip
    records = [
        RequestRecord(n, 100, start, start, start, end - 10 * gap, end, [gap] * 10, 11, None, "ok")
        for n, (start, end, gap) in enumerate(spans)
    ]
    found = judged(records, users=2)
    assert found["tpot_ms"]["mean"] < 20  # type: ignore[index]
    assert found["all_busy"] == {
        "requests": 4, "ttft_ms": 925.0, "tpot_ms": 20.0, "prompt_tokens": 100, "output_tokens": 11, "cached_tokens": 0,
    }  # fmt: skip
    mix = Mix((RequestClass("all", 1.0, parse_lengths("constant:100"), parse_lengths("constant:11")),))
    spec = BenchSpec(Endpoint("http://h", "m"), mix, users=2, requests=7)
    run = point_run("run", spec, found, 2)
    assert ",tpot_ms,20," in points_csv([run], Deployment("m"))
    found["all_busy"]["tpot_ms"] = 0.0
    assert ",tpot_ms," not in points_csv([run], Deployment("m")), "one event held every token"
    assert judged(records[:1], users=2)["all_busy"] is None, "the second user never came"
    assert "all_busy" not in judged(records)


def test_one_request_is_no_mean_of_many_users() -> None:
    """Three users come one after another; only the last one's first request ran beside both others'."""
    spans = [(0.0, 2.1), (1.0, 3.1), (2.0, 3.0), (2.1, 4.1), (3.0, 3.2), (3.1, 3.3), (3.2, 3.4)]
    records = [
        RequestRecord(n, 100, a, a, a, b - 0.1, b, [0.01] * 10, 11, None, "ok") for n, (a, b) in enumerate(spans)
    ]
    found = judged(records, users=3)
    assert found["all_busy"] is None
    assert any("more requests for each user" in note for note in found["notes"])  # type: ignore[attr-defined]


def test_failures_and_slow_answers_together_miss_the_percentile() -> None:
    slow = [record(n, 2.0) for n in (20, 60, 99)]
    failed = [record(n, outcome="http_500") for n in range(5, 95, 11)]
    good = [record(n) for n in range(100) if n not in {r.index for r in (*slow, *failed)}]
    assert meets_slo(judged(good)) is True
    assert meets_slo(judged(good + slow)) is True
    assert meets_slo(judged(good + failed)) is True
    assert meets_slo(judged(good + slow + failed)) is False


def test_uncounted_tokens_are_judged_by_the_time_between_events() -> None:
    quick = judged([record(n, tokens=None) for n in range(40)])
    slow = judged([record(n, tokens=None, gap=0.08) for n in range(40)])
    assert quick["tpot_ms"]["p50"] is None  # type: ignore[index]
    assert (quick["slo_attainment"], meets_slo(quick)) == (1.0, True)
    assert (slow["slo_attainment"], meets_slo(slow)) == (0.0, False)
    assert any("did not count the tokens of 40" in note for note in slow["notes"])  # type: ignore[attr-defined]


def test_failures_of_a_dropped_warm_up_are_told() -> None:
    found = judged([record(n, outcome="http_500" if n < 3 else "ok") for n in range(40)], warmup_s=10.0)
    assert (found["warmup"]["errors"], found["requests"]["errors"]) == (3, 0)  # type: ignore[index]
    assert any("3 requests failed in the warm-up" in note for note in found["notes"])  # type: ignore[attr-defined]
    nothing = judged([record(n) for n in range(40)], warmup_s=1000.0)
    assert any("nothing was measured" in note for note in nothing["notes"])  # type: ignore[attr-defined]


def test_an_answer_without_a_token_is_no_fast_one() -> None:
    end = sse({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
    done = b"data: [DONE]\n\n"
    assert outcome_of(end, usage(100, 0), done).outcome == Outcome.NO_TOKENS
    assert outcome_of(end, done).outcome == Outcome.NO_TOKENS
    assert outcome_of(end, usage(100, 1), done).outcome == Outcome.OK


def test_more_tokens_than_were_asked_for_are_no_count() -> None:
    token = sse({"choices": [{"index": 0, "text": " a", "finish_reason": None}]})
    assert outcome_of(token, token, usage(100, 8), b"data: [DONE]\n\n").output_tokens == 8
    assert outcome_of(token, token, usage(100, 9), b"data: [DONE]\n\n").output_tokens is None


def test_a_comment_before_the_role_of_a_chat_makes_it_no_token() -> None:
    stream = ChatStream()
    role = sse({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    stream.feed(b": waiting\n\n" + sse({"choices": []}) + role, 1.0)
    stream.feed(sse({"choices": [{"index": 0, "delta": {"content": "a"}}]}), 2.0)
    assert list(stream.times) == [2.0]


def test_a_line_without_end_is_an_error_and_is_not_kept() -> None:
    stream = CompletionStream()
    for _ in range(EVENT_LIMIT // 65536 + 1):
        stream.feed(b"x" * 65536, 1.0)
    assert stream.error is not None
    assert len(stream._tail) <= EVENT_LIMIT


def test_bench_points_have_the_lengths_that_were_counted() -> None:
    mix = Mix((RequestClass("all", 1.0, parse_lengths("constant:500"), parse_lengths("constant:128")),))
    spec = BenchSpec(Endpoint("http://h", "m"), mix, users=2, requests=40)
    counted = point_run("p", spec, judged([record(n) for n in range(40)]), 2)
    assert (counted.isl, counted.osl, counted.prefix) == (100, 11, 0)
    shared = judged([replace(record(n), cached_tokens=64) for n in range(40)])
    assert point_run("p", spec, shared, 2).prefix == 64
    unknown = point_run("p", spec, judged([record(n, tokens=None if n else 11) for n in range(40)]), 2)
    assert (unknown.isl, unknown.osl) == (500, 128)
    assert "output_tok_s" not in points_csv([unknown], Deployment())


@pytest.mark.parametrize("share", [float("nan"), float("inf"), -1.0])
def test_a_share_that_is_no_number_is_refused(share: float) -> None:
    with pytest.raises(BadInputError, match="shares"):
        Mix((RequestClass("a", share, parse_lengths("constant:5"), parse_lengths("constant:5")),))


def test_a_tenant_s_key_cannot_bring_a_header_along(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_bytes(orjson.dumps({"a": "k\r\nx-other: 1"}))
    with pytest.raises(BadInputError, match="printable"):
        _keys(file)
