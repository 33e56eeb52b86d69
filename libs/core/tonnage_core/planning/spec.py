"""The plan specification: what to serve, the SLO, what may be rented. Every malformed field is one clear error."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tonnage_core.hardware import GpuSpec
from tonnage_core.kv_cache import parse_engine
from tonnage_core.kv_cache.versions import engine_facts
from tonnage_core.latency import percentile_of_calls
from tonnage_core.models import ModelShape
from tonnage_core.parallelism import Layout
from tonnage_core.planning.errors import PlanSpecError
from tonnage_core.planning.fields import Fields, shown, whole
from tonnage_core.planning.sampling import Work
from tonnage_core.planning.traffic import Traffic, read_traffic
from tonnage_core.prediction.calibrate import Calibration
from tonnage_core.prediction.step_model import in_precision
from tonnage_core.prediction.truth import Point
from tonnage_core.quantization.formats import PRECISIONS
from tonnage_core.traces import TraceRequest

if TYPE_CHECKING:
    from random import Random

METRICS = ("ttft_ms", "tpot_ms", "e2e_ms")
DRAFTERS = ("ngram", "draft", "medusa", "eagle")


@dataclass(frozen=True, slots=True)
class Target:
    """`percent` % of requests have `metric` (ttft_ms, tpot_ms, e2e_ms) within `limit_ms`."""

    metric: str
    percent: float
    limit_ms: float

    @property
    def name(self) -> str:
        """Such as `ttft_ms.p99`."""
        return f"{self.metric}.p{self.percent:g}"


@dataclass(frozen=True, slots=True)
class Offer:
    """A GPU that may be rented: price of one for an hour, and the most there are."""

    gpu: GpuSpec
    usd_per_hour: float
    most: int


@dataclass(frozen=True, slots=True)
class Draft:
    """Speculative decoding to consider: how tokens are drafted and the share of them accepted on this traffic."""

    method: str
    acceptance: float
    model: str = ""
    """The checkpoint that drafts, as the engine is told: a model of its own for `draft`, else a head's."""
    shape: ModelShape | None = field(default=None, compare=False)
    """Of the model of its own."""

    @property
    def name(self) -> str:
        """Such as `eagle`, or `draft-Qwen3-0.6B`."""
        return f"{self.method}-{self.model.rsplit('/', 1)[-1]}" if self.model else self.method


@dataclass(frozen=True, slots=True)
class Space:
    """What the search may choose from; None: what the planner finds sensible for the model and the card."""

    tp: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    dp: tuple[int, ...] | None = None
    precision: tuple[str, ...] | None = None
    kv_dtype: tuple[str, ...] | None = None
    max_num_batched_tokens: tuple[int, ...] | None = None
    speculation: tuple[Draft, ...] = ()


@dataclass(frozen=True)
class PlanSpec:
    """Everything a plan is made from. `targets` are as asked; `call_targets` what each call must meet under fan-out."""

    model: str
    shape: ModelShape
    engine: str
    engine_version: str
    traffic: Traffic
    targets: tuple[Target, ...]
    offers: tuple[Offer, ...]
    generator: Callable[[int], "Random"]
    """A generator of random numbers from a seed: equal seeds give equal plans."""
    headroom: float = 0.2
    fan_out: int = 1
    seed: int = 0
    link_gbps: float = 50.0
    space: Space = field(default_factory=Space)
    points: tuple[Point, ...] = ()
    """Measured closed-loop points of the model and engine on offered cards."""
    work: Work = field(default_factory=Work, compare=False)
    """What the engine model has followed for it; a specification that differs in a limit counts on."""

    @cached_property
    def _shapes(self) -> dict[str, ModelShape]:
        return {}

    @cached_property
    def calibrations(self) -> dict[tuple[str, Layout], Calibration | None]:
        """What `points` came to by card and layout, worked out once."""
        return {}

    @cached_property
    def unfit(self) -> dict[tuple[str, Layout], str]:
        """Why those of a card and layout came to nothing."""
        return {}

    def shape_in(self, precision: str) -> ModelShape:
        """The model in a weight format; one object a format, since what is known of it is kept with it."""
        return self._shapes.setdefault(precision, in_precision(self.shape, precision))

    @property
    def call_targets(self) -> tuple[Target, ...]:
        """The percentile each of `fan_out` calls must meet for the asked share of users to see all of them meet it."""
        if self.fan_out == 1:
            return self.targets
        return tuple(
            Target(each.metric, percentile_of_calls(each.percent, self.fan_out), each.limit_ms) for each in self.targets
        )


@dataclass(frozen=True, slots=True)
class Lookups:
    """How references become things; a seed becomes a generator. `trace` None: files are not read here."""

    model: Callable[[str], ModelShape]
    gpu: Callable[[str], GpuSpec]
    generator: Callable[[int], "Random"]
    trace: Callable[[str], Sequence[TraceRequest]] | None = None


_FIELDS = ("model", "engine", "traffic", "slo", "offers", "headroom", "fan_out", "seed", "link_gbps", "search")


def read_spec(document: object, find: Lookups) -> PlanSpec:
    """The specification in a document as YAML or JSON gives it. Raises `PlanSpecError`, or what `find` raises."""
    fields = Fields(document)
    fields.only(*_FIELDS)
    model = fields.text("model")
    engine, version = parse_engine(fields.text("engine", "vllm"))
    engine_facts(engine, version)
    traffic = fields.fields("traffic")
    trace = find.trace(traffic.text("trace")) if traffic.has("trace") and find.trace is not None else None
    shape = find.model(model)
    space = _space(fields.fields("search"), shape, find.model) if fields.has("search") else Space()
    if space.speculation and engine != "vllm":
        raise PlanSpecError(f"search.speculation is planned for vllm alone; leave it out for {engine}")
    return PlanSpec(
        model=model,
        shape=shape,
        engine=engine,
        engine_version=version,
        traffic=read_traffic(traffic, trace),
        targets=_targets(fields.fields("slo")),
        offers=_offers(fields, find.gpu),
        generator=find.generator,
        headroom=fields.number("headroom", 0, 0.9, 0.2),
        fan_out=fields.whole("fan_out", 1, 1000, 1),
        seed=fields.whole("seed", 0, 1 << 32, 0),
        link_gbps=fields.number("link_gbps", 0.01, 10_000, 50.0),
        space=space,
    )


def _targets(fields: Fields) -> tuple[Target, ...]:
    fields.only(*METRICS)
    found: list[Target] = []
    for metric in METRICS:
        if fields.has(metric):
            found += _percentiles(fields.fields(metric), metric)
    if not found:
        raise PlanSpecError("slo is empty; give a limit such as ttft_ms: {p99: 1500}")
    return tuple(found)


def _percentiles(fields: Fields, metric: str) -> list[Target]:
    found: list[Target] = []
    for name in fields.names():
        digits = name[1:].replace(".", "", 1)
        if name[:1] != "p" or not (digits.isascii() and digits.isdigit()) or not 0 < float(name[1:]) < 100:
            raise PlanSpecError(f"{fields.path(shown(name).strip(chr(39)))} is no percentile; use p50, p90, p99")
        target = Target(metric, float(name[1:]), fields.number(name, 1e-3, 1e9))
        if any(each.percent == target.percent for each in found):
            raise PlanSpecError(f"{fields.path(name)} is given twice; keep one limit a percentile")
        found.append(target)
    if not found:
        raise PlanSpecError(f"{fields.path('p99')} is missing; give a limit in ms")
    return found


def _offers(fields: Fields, gpu: Callable[[str], GpuSpec]) -> tuple[Offer, ...]:
    found = []
    for index, each in enumerate(fields.items("offers")):
        one = Fields(each, f"offers[{index}]")
        one.only("gpu", "usd_per_hour", "max")
        price, most = one.number("usd_per_hour", 1e-6, 1e6), one.whole("max", 1, 100_000, 1024)
        found.append(Offer(gpu(one.text("gpu")), price, most))
    names = [offer.gpu.name for offer in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PlanSpecError(f"offers names {twice} twice; keep one offer a GPU")
    return tuple(found)


def _space(fields: Fields, shape: ModelShape, find: Callable[[str], ModelShape]) -> Space:
    fields.only("tp", "pp", "ep", "dp", "precision", "kv_dtype", "max_num_batched_tokens", "speculation")
    return Space(
        tp=_wholes(fields, "tp", 64),
        pp=_wholes(fields, "pp", 64),
        ep=_wholes(fields, "ep", 1024),
        dp=_wholes(fields, "dp", 1024),
        precision=_words(fields, "precision", ("auto", *PRECISIONS)),
        kv_dtype=_words(fields, "kv_dtype", ("auto", "bf16", "fp8")),
        max_num_batched_tokens=_wholes(fields, "max_num_batched_tokens", 1 << 20),
        speculation=_drafts(fields, shape, find),
    )


def _wholes(fields: Fields, name: str, high: int) -> tuple[int, ...] | None:
    if not fields.has(name):
        return None
    return tuple(dict.fromkeys(whole(each, fields.path(name), 1, high) for each in fields.items(name, 16)))


def _words(fields: Fields, name: str, known: Sequence[str]) -> tuple[str, ...] | None:
    if not fields.has(name):
        return None
    for each in (chosen := fields.items(name, 16)):
        if each not in known:
            raise PlanSpecError(f"{fields.path(name)} holds {shown(each)}; use {', '.join(known)}")
    return tuple(dict.fromkeys(chosen))


def _drafts(fields: Fields, shape: ModelShape, find: Callable[[str], ModelShape]) -> tuple[Draft, ...]:
    if not fields.has("speculation"):
        return ()
    found: list[Draft] = []
    for index, each in enumerate(fields.items("speculation", 8)):
        one = Fields(each, fields.path(f"speculation[{index}]"))
        one.only("method", "acceptance", "model")
        if (method := one.text("method")) not in DRAFTERS:
            raise PlanSpecError(f"{one.path('method')} is {shown(method)}; use {', '.join(DRAFTERS)}")
        model = one.text("model") if method == "draft" or one.has("model") else ""
        if method == "ngram" and model:
            raise PlanSpecError(f"{one.path('model')}: ngram drafts from the prompt; leave the model out")
        drafts = find(model) if method == "draft" else None
        if drafts is not None and drafts.vocab != shape.vocab:
            raise PlanSpecError(
                f"{one.path('model')} {model} has a vocabulary of {drafts.vocab:,} and the model one of "
                f"{shape.vocab:,}; a draft needs the same"
            )
        draft = Draft(method, one.number("acceptance", 0, 1), model, drafts)
        if any(other.name == draft.name for other in found):
            raise PlanSpecError(f"{one.path('method')}: {shown(draft.name)} is given twice; keep one acceptance of it")
        found.append(draft)
    return tuple(found)


def document_of(spec: PlanSpec) -> Mapping[str, Any]:
    """What was asked, as the plan's document repeats it."""
    traffic = spec.traffic
    return {
        "model": spec.model,
        "engine": f"{spec.engine}:{spec.engine_version}" if spec.engine_version else spec.engine,
        "rate_rps": round(traffic.rate_rps, 6),
        "mean_input_tokens": round(traffic.mean_input, 1),
        "mean_cached_tokens": round(traffic.mean_cached, 1),
        "mean_output_tokens": round(traffic.outputs.mean, 1),
        "longest_request": traffic.longest,
        "arrival_cv": traffic.arrival_cv,
        "slo": {each.name: each.limit_ms for each in spec.targets},
        "call_slo": {each.name: each.limit_ms for each in spec.call_targets},
        "offers": [{"gpu": o.gpu.name, "usd_per_hour": o.usd_per_hour, "max": o.most} for o in spec.offers],
        "headroom": spec.headroom,
        "fan_out": spec.fan_out,
    }
