"""Plans: the cheapest fleet that the engine model confirms, an explanation for each candidate, and ways out."""

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import pytest

from tonnage_core.engine.batch import Batch
from tonnage_core.parallelism import Layout
from tonnage_core.planning import search
from tonnage_core.planning.candidate import Config, Refused, Sized, size
from tonnage_core.planning.curve import knee_of
from tonnage_core.planning.drafting import clock_of, own_steps
from tonnage_core.planning.emit import check_manifest
from tonnage_core.planning.evaluate import Checked, check, load_of, rank
from tonnage_core.planning.mixes import cheapest_mix
from tonnage_core.planning.page import plan_page
from tonnage_core.planning.plan import make_plan
from tonnage_core.planning.space import configurations
from tonnage_core.planning.spec import Lookups, Offer, PlanSpec, read_spec
from tonnage_core.planning.steady import steady_of
from tonnage_core.planning.trial import run_trial, tail_percentile
from tonnage_runtime.catalogue import load_gpu, load_model

FIND = Lookups(load_model, load_gpu, Random)
ASKED: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "engine": "vllm:0.32.0",
    "traffic": {"rate_rps": 30.0, "input_tokens": {"p50": 500, "p99": 3000}, "output_tokens": {"p50": 60, "p99": 200}},
    "slo": {"ttft_ms": {"p99": 1000}, "tpot_ms": {"p99": 50}},
    "offers": [{"gpu": "H100", "usd_per_hour": 2.9, "max": 8}, {"gpu": "L40S", "usd_per_hour": 0.9, "max": 16}],
    "search": {"precision": ["auto"], "kv_dtype": ["auto"], "tp": [1, 2]},
}


def _spec(**changes: Any) -> PlanSpec:
    return read_spec(ASKED | changes, FIND)


@lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    return make_plan(_spec(), "1.2.3")


def test_the_document_has_the_contracts_fields() -> None:
    document = _document()
    assert document["schema"] == "tonnage.plan/1"
    assert document["feasible"] is True
    wanted = {"gpu", "tp", "pp", "ep", "precision", "kv_dtype", "replicas", "flags", "binding"}
    wanted |= {"usd_per_mtok", "ttft_ms", "tpot_ms", "goodput_rps"}
    for row in document["candidates"]:
        assert wanted <= set(row)
        assert row["reason"], row["name"]
    assert document["pareto"]
    assert document["relaxations"] == []


def test_the_winner_is_confirmed_by_the_engine_model_and_cheapest() -> None:
    document = _document()
    winner = document["candidates"][0]
    assert winner["class"] == "simulated"
    assert winner["ttft_ms"] <= 1000
    assert winner["usd_per_mtok"] == document["best"]["usd_per_mtok"]
    tokens = 30.0 * _spec().traffic.outputs.mean
    price = winner["replicas"] * (2.9 if "H100" in winner["gpu"] else 0.9) * (winner["tp"] * winner["pp"])
    assert winner["usd_per_mtok"] == pytest.approx(price / (tokens * 3600) * 1e6, rel=1e-3)
    simulated = [row for row in document["candidates"] if row["class"] == "simulated" and row["feasible"]]
    assert winner["usd_per_hour"] == min(row["usd_per_hour"] for row in simulated)


def test_equal_specifications_give_equal_documents() -> None:
    assert make_plan(_spec(), "1.2.3") == _document()


def test_a_replica_is_tested_with_the_headroom_on_top_of_its_share() -> None:
    spec = _spec()
    assert load_of(spec, 3) == pytest.approx(30 / 3 / 0.8)
    winner = _document()["candidates"][0]
    assert winner["tested_rps_per_replica"] == pytest.approx(load_of(spec, winner["replicas"]), abs=1e-3)


def test_what_is_emitted_passes_its_own_check_and_a_tampered_one_does_not() -> None:
    spec, best = _spec(), _document()["best"]
    assert best["check"] == {"passes": True, "problems": []}
    manifest = best["model_server"]
    assert (manifest["apiVersion"], manifest["kind"]) == ("tonnage.dev/v1alpha1", "ModelServer")
    gpu = load_gpu(manifest["spec"]["gpu"]["class"])
    assert check_manifest(manifest, spec.shape, gpu, spec.traffic.longest) == []

    def problems(count: int = 1, **args: Any) -> str:
        engine = manifest["spec"]["engine"]
        changed = engine | {"args": engine["args"] | {name.replace("_", "-"): args[name] for name in args}}
        tampered = {"spec": {"engine": changed, "gpu": {"count": count}}}
        return "; ".join(check_manifest(tampered, spec.shape, gpu, spec.traffic.longest))

    assert "tp 3 does not divide" in problems(3, tensor_parallel_size=3)
    assert "is more than the 131,072 positions" in problems(max_model_len=200_000)
    assert "below the longest request" in problems(max_model_len=1024)
    assert "gpu.count is 1; the arguments need 2" in problems(1, tensor_parallel_size=2)
    assert problems(gpu_memory_utilization=0.2)


def test_the_curve_shows_the_engine_model_beside_both_queues_and_its_knee() -> None:
    curve = _document()["curve"]
    rates = [point["rate_rps"] for point in curve["points"]]
    assert rates == sorted(rates)
    assert len(rates) >= 4
    for point in curve["points"]:
        assert (point["ttft_mean_ms_mm1"] is None) == (point["utilisation"] >= 1)
    tpot = [point["tpot_ms"]["mean"] for point in curve["points"]]
    assert tpot[-1] > tpot[0]
    assert "of the" in curve["why_not_full"]
    assert knee_of([(1, 10), (2, 11), (3, 13), (4, 40), (5, 100)]) == 2
    assert knee_of([(1, 10), (2, 5), (3, 4)]) is None


def test_advice_comes_with_numbers_on_every_topic() -> None:
    advice = _document()["advice"]
    topics = {each["topic"] for each in advice}
    assert {"quantisation", "kv_dtype", "parallelism", "chunk_budget", "speculation", "disaggregation"} <= topics
    assert all(each["numbers"] and each["text"] for each in advice)
    eagle = next(each["numbers"] for each in advice if each["numbers"].get("method") == "eagle")
    assert eagle["alone"]["speedup"] >= eagle["planned"]["speedup"] >= 1


def test_the_page_loads_nothing_and_escapes_names() -> None:
    document = _document()
    page = plan_page(document | {"spec": document["spec"] | {"model": "<script>alert(1)</script>"}})
    assert "<script" not in page
    assert "http://" not in page and "https://" not in page and "src=" not in page
    assert page.count("<svg") >= 6
    assert "Roofline" in page and "Memory of one GPU" in page and "Pareto" in page


def test_too_few_gpus_are_named_with_the_number_it_would_take() -> None:
    offers = [{"gpu": "L40S", "usd_per_hour": 0.9, "max": 1}]
    document = make_plan(_spec(offers=offers))
    assert document["feasible"] is False
    assert document["best"] is None
    assert document["binding"] == "offers.L40S.max"
    more = next(way for way in document["relaxations"] if way["change"] == "offers.L40S.max")
    assert more["from"] == 1 < more["to"]
    assert make_plan(_spec(offers=[offers[0] | {"max": more["to"]}]))["feasible"] is True
    less = next(way for way in document["relaxations"] if way["change"] == "traffic.rate_rps")
    fewer = ASKED["traffic"] | {"rate_rps": less["to"] * 0.999}
    assert make_plan(_spec(offers=offers, traffic=fewer))["feasible"] is True
    assert "not feasible" in plan_page(document)


def test_an_impossible_ttft_is_named_with_the_limit_that_would_work() -> None:
    slo = {"ttft_ms": {"p99": 20}, "tpot_ms": {"p99": 50}}
    document = make_plan(_spec(slo=slo))
    assert (document["feasible"], document["binding"]) == (False, "ttft_ms.p99")
    way = next(way for way in document["relaxations"] if way["change"] == "slo.ttft_ms.p99")
    assert way["from"] == 20 < way["to"]
    assert make_plan(_spec(slo=slo | {"ttft_ms": {"p99": way["to"]}}))["feasible"] is True


def test_a_model_that_fits_nowhere_is_bound_by_memory() -> None:
    document = make_plan(
        _spec(model="meta-llama/Llama-3.1-405B", offers=[{"gpu": "T4", "usd_per_hour": 0.3, "max": 2}])
    )
    assert document["feasible"] is False
    assert document["binding"] in ("weights", "kv_cache", "activation")
    assert document["reason"]


def test_two_kinds_of_gpu_carry_what_neither_carries_alone() -> None:
    traffic = ASKED["traffic"] | {"rate_rps": 90.0}
    spec = _spec(traffic=traffic, search=ASKED["search"] | {"tp": [1]})
    checked = [_checked(spec, offer) for offer in spec.offers]
    counts = [each.replicas for each in checked]
    assert all(count is not None and count >= 2 for count in counts)
    offers = [asked | {"max": (count or 0) - 1} for asked, count in zip(ASKED["offers"], counts, strict=True)]
    scarce = _spec(traffic=traffic, offers=offers, search=ASKED["search"] | {"tp": [1]})
    mix = cheapest_mix(scarce, [_checked(scarce, offer) for offer in scarce.offers])
    assert mix is not None
    assert {each.config.offer.gpu.name for each, _ in mix.parts} == {"H100-SXM-80GB", "L40S"}
    assert all(count <= each.config.offer.most for each, count in mix.parts)
    assert sum(count * scarce.traffic.rate_rps / (each.replicas or 1) for each, count in mix.parts) >= 90 - 1e-6
    assert mix.usd_per_hour == pytest.approx(sum(each.config.offer.usd_per_hour * count for each, count in mix.parts))


def _checked(spec: PlanSpec, offer: Offer) -> Checked:
    sized = size(spec, Config(offer, Layout(1)))
    assert isinstance(sized, Sized)
    ranked = rank(spec, sized)
    assert not isinstance(ranked, Refused)
    return check(spec, ranked)


def test_experts_may_be_spread_and_latent_attention_run_data_parallel() -> None:
    spec = _spec(
        model="deepseek-ai/DeepSeek-V3",
        offers=[{"gpu": "H200", "usd_per_hour": 3.6, "max": 16}],
        search={"precision": ["auto"], "kv_dtype": ["auto"]},
    )
    layouts = {each.config.layout for each in configurations(spec, spec.offers[0]) if isinstance(each, Sized)}
    assert {Layout(8, 1, 1, 1), Layout(8, 1, 8, 1), Layout(1, 1, 8, 8)} <= layouts


def test_a_size_that_does_not_divide_heads_or_vocabulary_is_refused_with_the_reason() -> None:
    spec = _spec()
    refused = size(spec, Config(spec.offers[0], Layout(3)))
    assert isinstance(refused, Refused)
    assert "tp 3 does not divide" in refused.reason


def test_a_size_that_does_not_divide_the_draft_models_heads_is_refused_too() -> None:
    draft = {"method": "draft", "model": "Qwen/Qwen2.5-7B-Instruct", "acceptance": 0.9}
    spec = _spec(model="Qwen/Qwen2.5-72B-Instruct", search={"speculation": [draft]})
    refused = size(spec, Config(spec.offers[0], Layout(8), draft=spec.space.speculation[0], drafted=2))
    assert isinstance(refused, Refused)
    assert refused.reason.startswith("tp 8 does not divide the 28 attention heads of")


def test_drafts_that_are_accepted_carry_more_in_formula_and_engine_model() -> None:
    spec = _spec(search=ASKED["search"] | {"tp": [1], "speculation": [{"method": "eagle", "acceptance": 0.9}]})
    sized = [each for each in configurations(spec, spec.offers[0]) if isinstance(each, Sized)]
    plain, drafted = sized[0], max(sized, key=lambda each: each.config.drafted)
    assert drafted.config.drafted == 5
    load = spec.traffic.at(4.0)
    runs = [run_trial(each, load, spec.targets, rng=Random(0), measured=60) for each in (plain, drafted)]
    assert runs[1].tpot_ms[30] < 0.6 * runs[0].tpot_ms[30]
    first, second = (rank(spec, each) for each in (plain, drafted))
    assert not isinstance(first, Refused) and not isinstance(second, Refused)
    assert first.bound.point is not None and second.bound.point is not None
    assert second.bound.point.rate_rps > first.bound.point.rate_rps


@dataclass(frozen=True)
class _Run:
    """A trial with every target at `value`, of a limit of 1,000."""

    value: float
    measured: int = 60

    def broken(self, targets: Any) -> Any:
        return targets[0] if self.value > 1000 else None

    def value_ms(self, target: Any) -> float:
        return self.value


def test_when_the_limit_with_most_room_fails_in_full_the_next_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = _spec(slo={"ttft_ms": {"p99": 1000}})
    sized = size(spec, Config(spec.offers[0], Layout(1)))
    assert isinstance(sized, Sized)
    ranked = rank(spec, sized)
    assert not isinstance(ranked, Refused)
    best, run = Checked(ranked, 3, "ttft_ms.p99", "why", {}), []

    def short(spec: PlanSpec, each: Any, *rest: Any) -> Any:
        return _Run({2048: 500.0, 16384: 600.0}.get(each.sized.budget, 2000.0))

    def full(spec: PlanSpec, each: Any, goal: int) -> Any:
        run.append((each.sized.budget, goal))
        return _Run(1100.0 if each.sized.budget == 2048 else 900.0)

    monkeypatch.setattr(search, "try_load", short)
    monkeypatch.setattr(search, "try_replicas", full)
    tuned, looked = search.tune(spec, best)
    assert run == [(2048, 2), (16384, 2)]
    assert (tuned.replicas, tuned.ranked.sized.budget) == (2, 16384)
    assert tuned.reason == "a step budget of 16384 tokens meets the SLO with 2 replicas; why"
    verdicts = {each.sized.budget: each.meets for each in looked if each.sized.budget in (2048, 16384)}
    assert verdicts == {2048: False, 16384: True}
    monkeypatch.setattr(search, "try_load", lambda spec, each, *rest: _Run(500.0 if each.sized.rows < 1024 else 2000.0))
    tuned, _ = search.tune(spec, best)
    assert tuned.reason == f"a cap of {tuned.ranked.sized.rows} requests meets the SLO with 2 replicas; why"


def test_a_draft_model_of_its_own_takes_memory_time_and_flags() -> None:
    draft = {"method": "draft", "model": "Qwen/Qwen3-0.6B", "acceptance": 0.8}
    search = ASKED["search"] | {"tp": [2]}
    traffic = ASKED["traffic"] | {"rate_rps": 4.0}
    asked = {"model": "Qwen/Qwen3-32B", "offers": ASKED["offers"][:1], "traffic": traffic}
    slo = {"ttft_ms": {"p99": 1000}, "tpot_ms": {"p50": 11}}  # under what the model alone reaches
    spec = _spec(**asked, slo=slo, search=search | {"speculation": [draft]})
    plain, drafted = [each for each in configurations(spec, spec.offers[0]) if isinstance(each, Sized)][:2]
    assert drafted.config.name.endswith("/draft-Qwen3-0.6B-2")
    assert drafted.pool_tokens < 0.8 * plain.pool_tokens, "the draft's weights, and its keys and values of every token"
    clock, target = clock_of(drafted), plain.model
    decode = Batch(decode_rows=8, decode_context=8000, sampled_rows=8)
    passed = Batch(decode_rows=24, decode_context=8000, sampled_rows=24)
    own = own_steps(drafted, spec.space.speculation[0])
    assert own is not None
    expected = (2 * own.seconds(decode) + target.seconds(passed)) / (1 + 0.8 + 0.8**2)
    assert clock.seconds(decode) == pytest.approx(expected)
    assert clock.seconds(decode) < 0.6 * target.seconds(decode) and target.seconds(decode) > 0.011
    prompt = Batch()
    prompt.add_prefill(2000, 0, 1)
    assert 1.01 < clock.seconds(prompt) / target.seconds(prompt) < 1.2, "the draft computes the prompt too"
    document = make_plan(spec)
    best = document["best"]
    words = best["command"]
    assert "draft-Qwen3-0.6B" in best["name"]
    told = json.loads(words[words.index("--speculative-config") + 1])
    assert told["num_speculative_tokens"] == int(best["name"].partition("Qwen3-0.6B-")[2][0])
    assert (told["method"], told["model"]) == ("draft_model", "Qwen/Qwen3-0.6B")
    assert document["candidates"][0]["speculation"]["model"] == "Qwen/Qwen3-0.6B"
    assert best["check"]["passes"]
    (advice,) = [each for each in document["advice"] if each["topic"] == "speculation"]
    assert advice["text"].startswith("draft-Qwen3-0.6B at acceptance 0.8: ")


def test_adapters_take_slots_memory_and_flags() -> None:
    adapters = {"count": 100, "zipf": 1.0, "rank": 20}
    spec = _spec(traffic=ASKED["traffic"] | {"rate_rps": 2.0, "adapters": adapters})
    sized = size(spec, Config(spec.offers[0], Layout(1)))
    plain = size(_spec(), Config(spec.offers[0], Layout(1)))
    assert isinstance(sized, Sized) and isinstance(plain, Sized)
    assert sized.adapter_slots == 32
    assert sized.pool_tokens < plain.pool_tokens
    words = make_plan(spec)["best"]["command"]
    assert words[words.index("--max-lora-rank") + 1] == "32"
    assert words[words.index("--max-loras") + 1] == "32"


def test_the_formulas_rise_with_load_and_stop_at_a_target() -> None:
    spec = _spec()
    sized = size(spec, Config(spec.offers[0], Layout(1)))
    assert isinstance(sized, Sized)
    formulas = steady_of(sized, spec.traffic)
    points = [formulas.at(rows) for rows in (1, 4, 16, 64)]
    assert [p.step_s for p in points] == sorted(p.step_s for p in points)
    assert [p.rate_rps for p in points] == sorted(p.rate_rps for p in points)
    bound = formulas.most(spec.targets)
    assert bound.point is not None
    assert all(formulas.value_ms(target, bound.point) <= target.limit_ms for target in spec.targets)
    assert formulas.carrying(bound.point.rate_rps).rows == pytest.approx(bound.point.rows, rel=0.02)


def test_percentiles_beyond_the_sample_follow_an_exponential_tail() -> None:
    ordered = [-math.log(1 - (n + 0.5) / 400) for n in range(400)]
    assert tail_percentile(ordered, 99.9) == pytest.approx(-math.log(0.001), rel=0.12)
    assert tail_percentile(ordered, 99) == pytest.approx(-math.log(0.01), rel=0.03)


def test_progress_is_told_and_may_end_the_search() -> None:
    class StopError(Exception):
        """Ends it."""

    seen: list[float] = []

    def progress(share: float, what: str) -> None:
        seen.append(share)
        if share >= 0.3:
            raise StopError

    with pytest.raises(StopError):
        make_plan(_spec(), progress=progress)
    assert seen == sorted(seen)
