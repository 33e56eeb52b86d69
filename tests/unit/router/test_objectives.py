"""Which requests count for and against the SLO, and how they and their pool are counted."""

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tonnage_core.slo import Slo, Verdict
from tonnage_router.metrics import MAX_POOLS, Names, RouterMetrics
from tonnage_router.objectives import Objectives
from tonnage_router.settings import RouterSettings, SloSpec

OBJECTIVES = Objectives(
    RouterSettings(
        slo=SloSpec(ttft_ms=1000, tpot_ms=50),
        slos={"slow": SloSpec(ttft_ms=9000), "by length": SloSpec(ttft_ms=500, ttft_ms_per_prompt_token=0.1)},
    )
)


def verdict(
    outcome: str = "ok",
    status: int = 200,
    first_s: float | None = 0.5,
    duration_s: float = 0.9,
    tokens: int | None = 11,
    pool: str = "m",
    *,
    stream: bool = True,
) -> Verdict | None:
    usage = None if tokens is None else SimpleNamespace(completion_tokens=tokens)
    exchange: Any = SimpleNamespace(
        first_byte_s=first_s, status=status, usage=usage, facts=SimpleNamespace(stream=stream), prompt_tokens=7000
    )
    return OBJECTIVES.verdict(exchange, outcome, pool, duration_s)


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        pytest.param({}, Verdict.MET, id="in both limits"),
        pytest.param({"first_s": 1.1, "duration_s": 1.2}, Verdict.LATE, id="first token late"),
        pytest.param({"first_s": 1.1, "duration_s": 1.2, "pool": "slow"}, Verdict.MET, id="limit of its own model"),
        pytest.param({"first_s": 1.1, "duration_s": 1.2, "pool": "by length"}, Verdict.MET, id="a long prompt's limit"),
        pytest.param({"first_s": 1.3, "duration_s": 1.4, "pool": "by length"}, Verdict.LATE, id="over that"),
        pytest.param({"duration_s": 1.1}, Verdict.SLOW, id="60 ms a token"),
        pytest.param({"duration_s": 9.0, "tokens": None}, Verdict.MET, id="tokens unknown: not judged by them"),
        pytest.param({"duration_s": 9.0, "tokens": 1}, Verdict.MET, id="one token has no time between tokens"),
        pytest.param({"stream": False, "duration_s": 1.4, "first_s": 1.4}, Verdict.MET, id="whole: 1 s and 10 x 50 ms"),
        pytest.param({"stream": False, "duration_s": 1.6, "first_s": 1.6}, Verdict.SLOW, id="whole, over it"),
        pytest.param({"status": 500}, Verdict.FAILED, id="the engine's error passed on"),
        pytest.param({"status": 429}, Verdict.FAILED, id="the engine is full"),
        pytest.param({"outcome": "overloaded", "status": 429, "first_s": None}, Verdict.FAILED, id="the queue is full"),
        pytest.param({"outcome": "upstream_failed", "status": 502, "first_s": None}, Verdict.FAILED, id="no engine"),
        pytest.param({"outcome": "cut"}, Verdict.FAILED, id="half an answer"),
        pytest.param({"outcome": "rate_limit_exceeded", "status": 429}, None, id="over its own limit"),
        pytest.param({"status": 400}, None, id="a bad request"),
        pytest.param({"outcome": "model_not_allowed", "status": 403}, None, id="a key that may not"),
        pytest.param({"outcome": "client_gone"}, None, id="left with the answer coming"),
        pytest.param({"outcome": "client_gone", "first_s": None, "duration_s": 0.5}, None, id="left early"),
        pytest.param(
            {"outcome": "client_gone", "first_s": None, "duration_s": 1.1, "pool": "by length"},
            None,
            id="left early for a long prompt",
        ),
        pytest.param(
            {"outcome": "client_gone", "first_s": None, "duration_s": 5.0}, Verdict.LATE, id="gave up waiting"
        ),
    ],
)
def test_a_request_is_judged_by_what_its_client_got(case: dict[str, Any], wanted: Verdict | None) -> None:
    assert verdict(**case) is wanted


def test_the_limit_grows_with_the_prompt_where_the_slo_says_so() -> None:
    slo = Slo(ttft_ms=100, ttft_ms_per_prompt_token=1)
    assert slo.judge(0.5, 0.5, 1, prompt_tokens=300) is Verdict.LATE
    assert slo.judge(0.5, 0.5, 1, prompt_tokens=500) is Verdict.MET


def test_names_beyond_the_bound_are_other_and_known_ones_stay() -> None:
    names = Names(2)
    assert [names.label(name) for name in ("a", "b", "c", "a", "d")] == ["a", "b", "other", "a", "other"]


def test_pools_beyond_the_bound_share_one_histogram() -> None:
    metrics = RouterMetrics(CollectorRegistry())
    for number in range(MAX_POOLS + 50):
        metrics.observe_request(f"pool-{number}", 1.0, None)
    assert len(metrics.duration) == len(metrics.first_byte) == MAX_POOLS + 1
    assert metrics.duration["other"].buckets()[-1][1] == 50
