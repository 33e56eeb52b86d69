"""The traffic a plan is for: rate, arrivals, lengths, a shared prefix, adapters; and requests drawn from it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from tonnage_core.engine.types import EngineRequest
from tonnage_core.planning.errors import PlanSpecError
from tonnage_core.planning.fields import Fields, number, shown
from tonnage_core.planning.lengths import LONGEST, Lengths, read_lengths
from tonnage_core.prefix_index.ceiling import ceiling
from tonnage_core.traces import TraceRequest

if TYPE_CHECKING:
    from random import Random

BLOCK = 16
"""Tokens of a cache block in drawn requests."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """`share` of requests begin with the same `tokens` tokens, which come before their own input."""

    tokens: int
    share: float

    @property
    def reused(self) -> int:
        """Tokens a prefix cache serves: full blocks only."""
        return self.tokens // BLOCK * BLOCK


@dataclass(frozen=True, slots=True)
class AdapterLoad:
    """`count` LoRA adapters of up to `rank`, asked for in proportion to 1 / place^zipf."""

    count: int
    zipf: float
    rank: int


@dataclass(frozen=True)
class Traffic:
    """Requests a second over the whole fleet and what each is like. Lengths in tokens.

    `arrival_cv` is the variation of times between arrivals: 1 Poisson, 0 constant, above 1 bursty (gamma). A traffic
    from a trace keeps its requests: they are replayed in their order, with their bursts and shared blocks.
    """

    rate_rps: float
    inputs: Lengths
    outputs: Lengths
    arrival_cv: float = 1.0
    prefix: SharedPrefix | None = None
    adapters: AdapterLoad | None = None
    requests: tuple[TraceRequest, ...] = ()
    hit_share: float = 0.0
    """Of a trace's prompt tokens, those that an unlimited prefix cache would serve."""

    @property
    def mean_input(self) -> float:
        """Mean prompt tokens, shared prefix included."""
        return self.inputs.mean + (self.prefix.tokens * self.prefix.share if self.prefix else 0.0)

    @property
    def mean_cached(self) -> float:
        """Mean prompt tokens a warm prefix cache serves."""
        if self.requests:
            return self.mean_input * self.hit_share
        return self.prefix.reused * self.prefix.share if self.prefix else 0.0

    @property
    def longest(self) -> int:
        """Tokens of the longest request, output included."""
        if self.requests:
            return max(request.input_length + request.output_length for request in self.requests)
        return self.inputs.longest + self.outputs.longest + (self.prefix.tokens if self.prefix else 0)

    def at(self, rate_rps: float) -> "Traffic":
        """The same requests at another rate."""
        return replace(self, rate_rps=rate_rps)

    def draw(self, count: int, rng: "Random") -> Iterator[tuple[float, EngineRequest]]:
        """(arrival in seconds, request) of `count` requests at `rate_rps`, for one engine."""
        if self.requests:
            yield from self._replay(count)
            return
        now, names = 0.0, _adapter_shares(self.adapters)
        for index in range(count):
            now += _gap(self.arrival_cv, rng) / self.rate_rps
            own, output = self.inputs.draw(rng), self.outputs.draw(rng)
            begins = self.prefix is not None and rng.random() < self.prefix.share
            yield now, self._request(index, own, output, begins=begins, adapter=_pick(names, rng))

    def _request(self, index: int, own: int, output: int, *, begins: bool, adapter: int | None) -> EngineRequest:
        shared = self.prefix.tokens if self.prefix and begins else 0
        keys = _keys(index, shared, shared + own, adapter or 0)
        return EngineRequest(
            request_id=str(index),
            prompt_tokens=shared + own,
            output_tokens=output,
            block_hashes=keys,
            adapter=None if adapter is None else f"adapter-{adapter}",
        )

    def _replay(self, count: int) -> Iterator[tuple[float, EngineRequest]]:
        chosen = self.requests[:count]
        span = chosen[-1].arrival_s - chosen[0].arrival_s
        # The window's own mean rate becomes the asked one, so that its bursts keep their form.
        scale = len(chosen) / self.rate_rps / span if span > 0 else 0.0
        for request in chosen:
            at = request.arrival_s - chosen[0].arrival_s
            yield (
                at * scale,
                EngineRequest(
                    request_id=str(request.index),
                    prompt_tokens=request.input_length,
                    output_tokens=request.output_length,
                    block_hashes=_trace_keys(request),
                ),
            )


_OWN, _ADAPTER = 1 << 48, 1 << 24


def _keys(index: int, shared: int, prompt: int, adapter: int) -> list[int]:
    """Block keys: the shared prefix's full blocks are the same for all requests of an adapter, the rest are its own."""
    common, blocks = shared // BLOCK, prompt // BLOCK
    first = _OWN + index * _ADAPTER
    return [*range(adapter * _ADAPTER, adapter * _ADAPTER + common), *range(first + common, first + blocks)]


def _trace_keys(request: TraceRequest) -> list[int]:
    """Keys of 16-token blocks from the trace's larger ones: equal prefixes of ids give equal keys."""
    keys: list[int] = []
    per, parent = request.block_tokens // BLOCK, 0
    for identity in request.hash_ids:
        # A key chains what came before it: equal keys mean equal ids from the first on.
        parent = (parent * 0x9E3779B97F4A7C15 + identity * 2 + 1) % (1 << 55)
        keys += range(parent * per, (parent + 1) * per)
    return keys[: request.input_length // BLOCK]


def _gap(cv: float, rng: "Random") -> float:
    if cv == 0:
        return 1.0
    return rng.expovariate(1.0) if cv == 1 else rng.gammavariate(1 / cv**2, cv**2)


def _adapter_shares(load: AdapterLoad | None) -> Sequence[float]:
    if load is None:
        return ()
    return list(accumulate(1 / (place + 1) ** load.zipf for place in range(load.count)))


def _pick(shares: Sequence[float], rng: "Random") -> int | None:
    if not shares:
        return None
    drawn = rng.random() * shares[-1]
    return next(place for place, reached in enumerate(shares) if drawn <= reached)


def read_traffic(fields: Fields, trace: Sequence[TraceRequest] | None) -> Traffic:
    """The `traffic` section; `trace` are the requests of the file that it names, None where it names none."""
    if fields.has("trace"):
        fields.only("trace", "rate_scale")
        if trace is None:
            raise PlanSpecError(f"{fields.path('trace')} names a file, which cannot be read here; give distributions")
        return traffic_of(trace, fields.number("rate_scale", 1e-6, 1e6, 1.0))
    fields.only("rate_rps", "arrivals", "input_tokens", "output_tokens", "shared_prefix", "adapters")
    return Traffic(
        rate_rps=fields.number("rate_rps", 1e-6, 1e7),
        inputs=read_lengths(fields, "input_tokens"),
        outputs=read_lengths(fields, "output_tokens"),
        arrival_cv=_arrivals(fields),
        prefix=_prefix(fields.fields("shared_prefix")) if fields.has("shared_prefix") else None,
        adapters=_adapters(fields.fields("adapters")) if fields.has("adapters") else None,
    )


def traffic_of(trace: Sequence[TraceRequest], rate_scale: float = 1.0) -> Traffic:
    """A trace as traffic: its mean rate times `rate_scale`, its lengths, and the share of tokens it repeats."""
    span = trace[-1].arrival_s - trace[0].arrival_s if trace else 0.0
    if len(trace) < 2 or span <= 0:
        raise PlanSpecError(f"the trace has {len(trace)} requests in {span:g} s; two at different times are the least")
    hits = ceiling(trace, BLOCK, None).hit_rate or 0.0
    return Traffic(
        rate_rps=len(trace) / span * rate_scale,
        inputs=Lengths(tuple(sorted(request.input_length for request in trace))),
        outputs=Lengths(tuple(sorted(request.output_length for request in trace))),
        requests=tuple(trace),
        hit_share=hits,
    )


def _arrivals(fields: Fields) -> float:
    value = fields.get("arrivals")
    if value is None or value == "poisson":
        return 1.0
    if value == "constant":
        return 0.0
    found = re.fullmatch(r"gamma\(\s*([0-9.eE+-]{1,20})\s*\)", value) if isinstance(value, str) else None
    if found is None:
        raise PlanSpecError(f"{fields.path('arrivals')} is {shown(value)}; use poisson, constant or gamma(cv)")
    try:
        given: object = float(found[1])
    except ValueError:
        given = found[1]
    return number(given, f"{fields.path('arrivals')} cv", 0.01, 20)


def _prefix(fields: Fields) -> SharedPrefix:
    fields.only("tokens", "share")
    return SharedPrefix(fields.whole("tokens", 1, LONGEST), fields.number("share", 0, 1, 1.0))


def _adapters(fields: Fields) -> AdapterLoad:
    fields.only("count", "zipf", "rank")
    return AdapterLoad(
        fields.whole("count", 1, 100_000), fields.number("zipf", 0, 10, 1.0), fields.whole("rank", 1, 512, 16)
    )
