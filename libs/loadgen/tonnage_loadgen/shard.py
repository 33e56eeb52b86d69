"""One process's share of a load: every `count`-th request, sent and measured, with a verdict on this process."""

from collections.abc import Sequence
from dataclasses import dataclass

from tonnage_core.benchmarking.workload import Planned
from tonnage_core.slo import RequestRecord
from tonnage_loadgen.answers import APIS
from tonnage_loadgen.bench_bytes import BenchTemplate
from tonnage_loadgen.closed_loop import ClosedLoop
from tonnage_loadgen.discover import Headers, usable_vocabulary, words_per_token
from tonnage_loadgen.open_loop import Load, OpenLoop
from tonnage_loadgen.prompt_bytes import PromptWriter, RequestFields, TextPrompts, TokenPrompts
from tonnage_loadgen.records import error_text, record_of
from tonnage_loadgen.target import parse_target
from tonnage_loadgen.verdict import ClientVerdict, judge


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What is measured and how it is asked. `tenant_keys` are bearer tokens by tenant; `timeout_s` is wall seconds."""

    url: str
    model: str
    api: str = "completions"
    prompt_format: str = "text"
    headers: Headers = ()
    tenant_keys: tuple[tuple[str, str], ...] = ()
    ignore_eos: bool = True
    cache_salt: str | None = None
    request_ids: str = "tonnage-bench"
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Users:
    """A closed loop: how many users, and each request's think time before it, in seconds."""

    count: int
    think_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Shard:
    """The requests of one process. `users` None is an open loop by `request.arrival_s`."""

    endpoint: Endpoint
    planned: tuple[Planned, ...]
    users: Users | None = None


@dataclass(frozen=True, slots=True)
class ShardResult:
    """Records of the shard's requests with times in seconds from the common start, and what the process says of itself.

    `error_samples` are up to five of the server's own words.
    """

    records: tuple[RequestRecord, ...]
    verdict: ClientVerdict
    opened: int
    resent: int
    wall_s: float
    error_samples: tuple[str, ...]


async def prepare(shard: Shard) -> BenchTemplate:
    """What must be asked and built before the load. Raises `TargetError`."""
    end = shard.endpoint
    target = parse_target(end.url)
    fields = RequestFields(end.model, end.ignore_eos, end.cache_salt, end.headers, end.request_ids)
    prompt: PromptWriter
    if end.prompt_format == "tokens":
        prompt = TokenPrompts(await usable_vocabulary(target, end.model, end.headers))
    else:
        prompt = TextPrompts(await words_per_token(target, end.model, end.headers) or 1.0)
    return BenchTemplate(target, end.api, prompt, fields, dict(end.tenant_keys))


async def measure(shard: Shard, template: BenchTemplate, start_at: float | None = None) -> ShardResult:
    """Send the shard's requests from the `perf_counter` instant `start_at` (None: at once) and measure them."""
    load = await _load(shard, template, start_at)
    pairs = [(exchange, shard.planned[exchange.index].request) for exchange in load.exchanges]
    records = tuple(record_of(exchange, request, load.start, request.output_length) for exchange, request in pairs)
    said = {text: None for exchange in load.exchanges if (text := error_text(exchange))}
    return ShardResult(
        records, judge(load, records), load.connections_opened, load.resent, load.end - load.start, tuple(said)[:5]
    )


async def _load(shard: Shard, template: BenchTemplate, start_at: float | None) -> Load:
    end, planned = shard.endpoint, shard.planned
    target, stream = parse_target(end.url), APIS[end.api][1]
    quits = [each.cancel_after_s for each in planned] if any(p.cancel_after_s is not None for p in planned) else []

    def write(number: int) -> bytes:
        return template.write(planned[number])

    if shard.users is not None:
        return await ClosedLoop(
            target,
            shard.users.count,
            shard.users.think_s,
            write,
            timeout_s=end.timeout_s,
            stream=stream,
            cancel_after=quits,
            follows=_next_turns(planned),
            start_at=start_at,
        ).run()
    schedule = [each.request.arrival_s for each in planned]
    return await OpenLoop(
        target, schedule, write, timeout_s=end.timeout_s, stream=stream, cancel_after=quits, start_at=start_at
    ).run()


def _next_turns(planned: Sequence[Planned]) -> dict[int, int]:
    """Places of requests and of the next turns of their sessions."""
    found, last = {}, dict[int, int]()
    for place, each in enumerate(planned):
        if each.session is not None:
            if each.session in last:
                found[last[each.session]] = place
            last[each.session] = place
    return found


def split(shard: Shard, processes: int) -> list[Shard]:
    """`shard` dealt out over at most `processes`, so that together they keep the one drawn schedule: an open loop by
    index, users by conversation."""
    if shard.users is None:
        count = max(1, min(processes, len(shard.planned)))
        return [Shard(shard.endpoint, shard.planned[n::count]) for n in range(count)]
    pairs = list(zip(shard.planned, shard.users.think_s, strict=True))
    keys = [index if each.session is None else each.session for index, (each, _) in enumerate(pairs)]
    count = max(1, min(processes, len(set(keys)), shard.users.count))
    dealt: list[list[tuple[Planned, float]]] = [[] for _ in range(count)]
    for key, pair in zip(keys, pairs, strict=True):
        dealt[key % count].append(pair)
    return [
        Shard(
            shard.endpoint,
            tuple(each for each, _ in part),
            Users(len(range(n, shard.users.count, count)), tuple(think for _, think in part)),
        )
        for n, part in enumerate(dealt)
    ]
