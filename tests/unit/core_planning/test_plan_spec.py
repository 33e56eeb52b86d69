"""Plan specifications: what is read, and one clear error for each malformed field."""

import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tonnage_core.errors import BadInputError
from tonnage_core.planning.lengths import histogram, lognormal
from tonnage_core.planning.spec import Lookups, PlanSpec, read_spec
from tonnage_core.planning.traffic import traffic_of
from tonnage_core.traces import TraceRequest
from tonnage_runtime.catalogue import load_gpu, load_model

FIND = Lookups(load_model, load_gpu, Random)


def document() -> dict[str, Any]:
    return {
        "model": "meta-llama/Llama-3.1-8B",
        "engine": "vllm:0.32.0",
        "traffic": {
            "rate_rps": 12.0,
            "arrivals": "gamma(2)",
            "input_tokens": {"p50": 1200, "p99": 9000},
            "output_tokens": {"histogram": [[100, 0.5], [300, 0.5]]},
            "shared_prefix": {"tokens": 1800, "share": 0.6},
            "adapters": {"count": 20, "zipf": 1.1, "rank": 16},
        },
        "slo": {"ttft_ms": {"p99": 1500, "p50": 400}, "tpot_ms": {"p99": 50}},
        "offers": [{"gpu": "H100-SXM-80GB", "usd_per_hour": 2.9, "max": 16}],
        "headroom": 0.2,
        "fan_out": 10,
        "search": {"tp": [1, 2], "speculation": [{"method": "eagle", "acceptance": 0.8}]},
    }


def _read(change: Callable[[dict[str, Any]], Any] = lambda spec: None) -> PlanSpec:
    asked = document()
    change(asked)
    return read_spec(asked, FIND)


def test_every_field_is_read() -> None:
    spec = _read()
    assert spec.shape.name == "meta-llama/Meta-Llama-3.1-8B" or "Llama-3.1-8B" in spec.shape.name
    assert (spec.engine, spec.engine_version) == ("vllm", "0.32.0")
    assert spec.traffic.arrival_cv == 2
    assert spec.traffic.outputs.mean == pytest.approx(200)
    assert spec.traffic.mean_cached == pytest.approx(0.6 * 1792)
    assert [target.name for target in spec.targets] == ["ttft_ms.p99", "ttft_ms.p50", "tpot_ms.p99"]
    assert spec.call_targets[0].percent == pytest.approx(99.9, abs=0.001)
    assert spec.space.tp == (1, 2)


def test_a_lognormal_has_the_percentiles_it_was_made_from() -> None:
    lengths = lognormal(1200, 9000)
    assert lengths.percentile(50) == pytest.approx(1200, rel=0.01)
    assert lengths.percentile(99) == pytest.approx(9000, rel=0.03)
    sigma = math.log(9000 / 1200) / 2.3263
    assert lengths.mean == pytest.approx(1200 * math.exp(sigma**2 / 2), rel=0.02)


def test_a_histogram_keeps_its_shares_and_splits_by_length() -> None:
    lengths = histogram([(10_000, 1), (100, 3)])
    assert lengths.mean == pytest.approx(0.75 * 100 + 0.25 * 10_000)
    short, share = lengths.between(0, 8192)
    assert short is not None
    assert short.longest == 100
    assert share == pytest.approx(0.75)
    assert lengths.between(20_000, 30_000) == (None, 0)


def test_drawn_requests_have_the_rate_the_prefix_and_the_adapters_asked_for() -> None:
    traffic = _read().traffic
    drawn = list(traffic.draw(2000, Random(1)))
    assert drawn[-1][0] == pytest.approx(2000 / 12, rel=0.1)
    shared = [
        request for _, request in drawn if request.prompt_tokens >= 1800 and int(request.block_hashes[0]) < 1 << 48
    ]
    assert len(shared) / 2000 == pytest.approx(0.6, abs=0.03)
    first = sum(request.adapter == "adapter-0" for _, request in drawn)
    last = sum(request.adapter == "adapter-19" for _, request in drawn)
    assert first > 6 * last > 0
    same = [request for request in shared if request.adapter == "adapter-0"]
    assert list(same[0].block_hashes[:112]) == list(same[1].block_hashes[:112])
    assert same[0].block_hashes[112] != same[1].block_hashes[112]


def test_requests_of_different_adapters_never_share_a_block() -> None:
    drawn = [request for _, request in _read().traffic.draw(400, Random(2))]
    owners: dict[Any, set[str | None]] = {}
    for request in drawn:
        for key in request.block_hashes:
            owners.setdefault(key, set()).add(request.adapter)
    assert all(len(names) == 1 for names in owners.values())


def test_a_trace_keeps_its_prefixes_bursts_and_rate() -> None:
    trace = [TraceRequest(n, n * 0.5, 1024, 50, (n // 4, 1000 + n)) for n in range(40)]
    traffic = traffic_of(trace, 2.0)
    assert traffic.rate_rps == pytest.approx(40 / 19.5 * 2)
    assert traffic.hit_share == pytest.approx(0.375, abs=0.01)
    times = [at for at, _ in traffic.at(4.0).draw(40, Random(0))]
    assert times[-1] == pytest.approx(10.0)
    requests = [request for _, request in traffic.draw(8, Random(0))]
    assert list(requests[0].block_hashes[:32]) == list(requests[3].block_hashes[:32])
    assert requests[0].block_hashes[32] != requests[3].block_hashes[32]
    assert requests[0].block_hashes[0] != requests[4].block_hashes[0]


def _put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(spec: dict[str, Any]) -> None:
        inner: Any = spec
        for step in path[:-1]:
            inner = inner[step]
        if value is KeyError:
            del inner[path[-1]]
        else:
            inner[path[-1]] = value

    return change


BAD = [
    (_put("model", value=KeyError), "model is missing"),
    (_put("model", value=7), "model is 7; a text"),
    (_put("model", value="nobody/knows"), "no model 'nobody/knows'"),
    (_put("engine", value="tgi:1.0"), "unknown engine 'tgi'"),
    (_put("colour", value="red"), "colour is unknown; known are model"),
    (_put("traffic", value=[1]), "traffic is [1]; a mapping"),
    (_put("traffic", "rate_rps", value=0), "traffic.rate_rps is 0; a number from"),
    (_put("traffic", "rate_rps", value=float("nan")), "traffic.rate_rps is nan"),
    (_put("traffic", "rate_rps", value=True), "traffic.rate_rps is True"),
    (_put("traffic", "arrivals", value="uniform"), "use poisson, constant or gamma(cv)"),
    (_put("traffic", "arrivals", value="gamma(-1)"), "traffic.arrivals cv is -1.0"),
    (_put("traffic", "arrivals", value="gamma(1e)"), "traffic.arrivals cv is '1e'"),
    (_put("traffic", "input_tokens", value={"p50": 10, "p99": 5}), "traffic.input_tokens.p99 is 5, below p50 10"),
    (_put("traffic", "input_tokens", value={"p50": 10}), "traffic.input_tokens.p99 is missing"),
    (_put("traffic", "input_tokens", value={"p50": 1, "p90": 5}), "traffic.input_tokens.p90 is unknown"),
    (_put("traffic", "input_tokens", value=0), "traffic.input_tokens is 0; a whole number"),
    (_put("traffic", "input_tokens", value="many"), "traffic.input_tokens is 'many'; a mapping"),
    (_put("traffic", "output_tokens", value={"histogram": [[1]]}), "histogram holds [1]; pairs"),
    (_put("traffic", "output_tokens", value={"histogram": []}), "histogram is []; a list of 1 to 4096"),
    (_put("traffic", "output_tokens", value={"histogram": [[5, 0]]}), "histogram is 0; a number"),
    (_put("traffic", "shared_prefix", value={"tokens": 1.5, "share": 1}), "shared_prefix.tokens is 1.5; a whole"),
    (_put("traffic", "shared_prefix", "share", value=2), "shared_prefix.share is 2; a number from 0 to 1"),
    (_put("traffic", "adapters", "rank", value=1024), "adapters.rank is 1024"),
    (_put("traffic", "trace", value="t.jsonl"), "is unknown; known are trace, rate_scale"),
    (_put("slo", value={}), "slo is empty"),
    (_put("slo", "itl_ms", value={"p99": 1}), "slo.itl_ms is unknown"),
    (_put("slo", "ttft_ms", value={"mean": 5}), "slo.ttft_ms.mean is no percentile"),
    (_put("slo", "ttft_ms", value={"p100": 5}), "slo.ttft_ms.p100 is no percentile"),
    (_put("slo", "ttft_ms", value={}), "slo.ttft_ms.p99 is missing"),
    (_put("slo", "ttft_ms", value={"p99": -5}), "slo.ttft_ms.p99 is -5"),
    (_put("offers", value=[]), "offers is []; a list"),
    (_put("offers", 0, "gpu", value="H300"), "unknown GPU 'H300'"),
    (_put("offers", 0, "usd_per_hour", value="cheap"), "offers[0].usd_per_hour is 'cheap'"),
    (_put("offers", 0, "max", value=0), "offers[0].max is 0"),
    (_put("offers", 0, "spot", value=True), "offers[0].spot is unknown"),
    (_put("headroom", value=1), "headroom is 1; a number from 0 to 0.9"),
    (_put("fan_out", value=0), "fan_out is 0"),
    (_put("search", "precision", value=["fp7"]), "search.precision holds 'fp7'; use auto"),
    (_put("search", "tp", value=[0]), "search.tp is 0"),
    (_put("search", "speculation", value=[{"method": "magic", "acceptance": 1}]), "method is 'magic'; use ngram"),
    (
        _put("search", "speculation", value=[{"method": "draft", "acceptance": 0.7}]),
        "speculation[0].model is missing",
    ),
    (
        _put("search", "speculation", value=[{"method": "draft", "acceptance": 0.7, "model": "Qwen/Qwen3-0.6B"}]),
        "search.speculation[0].model Qwen/Qwen3-0.6B has a vocabulary of 151,936 and the model one of 128,256",
    ),
    (
        _put("search", "speculation", value=[{"method": "ngram", "acceptance": 0.3, "model": "x"}]),
        "ngram drafts from the prompt; leave the model out",
    ),
    (
        _put("search", "speculation", value=[{"method": "eagle", "acceptance": share} for share in (0.6, 0.8)]),
        "search.speculation[1].method: 'eagle' is given twice; keep one acceptance of it",
    ),
    (_put("engine", value="sglang"), "search.speculation is planned for vllm alone; leave it out for sglang"),
]


@pytest.mark.parametrize(("change", "words"), BAD, ids=[words[:40] for _, words in BAD])
def test_a_malformed_field_is_one_error_that_names_it(change: Callable[[dict[str, Any]], None], words: str) -> None:
    with pytest.raises(BadInputError) as caught:
        _read(change)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("whole", [None, 3, "text", []])
def test_a_specification_that_is_no_mapping_is_refused(whole: object) -> None:
    with pytest.raises(BadInputError, match="a mapping of fields is expected"):
        read_spec(whole, FIND)


def test_two_offers_of_one_gpu_are_refused() -> None:
    with pytest.raises(BadInputError, match="offers names H100-SXM-80GB twice"):
        _read(lambda spec: spec["offers"].append({"gpu": "H100", "usd_per_hour": 1}))


def test_a_trace_is_refused_where_files_cannot_be_read() -> None:
    asked = document() | {"traffic": {"trace": "t.jsonl"}}
    with pytest.raises(BadInputError, match="cannot be read here; give distributions"):
        read_spec(asked, FIND)
