"""Trace replay against an OpenAI endpoint: from trace requests and a URL to records."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tonnage_core.slo import RequestRecord
from tonnage_core.traces import TraceRequest, truncated
from tonnage_loadgen.discover import Headers, Served, served_model, usable_vocabulary, words_per_token
from tonnage_loadgen.open_loop import Load, OnProgress, OpenLoop, Progress
from tonnage_loadgen.prompt_bytes import PromptWriter, RequestFields, RequestTemplate, TextPrompts, TokenPrompts
from tonnage_loadgen.records import error_text, record_of
from tonnage_loadgen.target import Target, parse_target

__all__ = ["Adjusted", "OnProgress", "Progress", "ReplayOptions", "ReplayResult", "adjust", "replay"]

PROMPT_FORMATS = ("text", "tokens")


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a trace is replayed.

    `speed` divides arrival times. `time_scale` is how much faster than the wall clock the engines run: 1 for real
    ones, the simulators' own factor for simulated ones. `timeout_s` is wall seconds from dispatch to the last byte.
    `cache_salt` goes out with every request: runs with different salts share no prefix blocks.
    """

    url: str
    model: str | None = None
    speed: float = 1.0
    time_scale: float = 1.0
    limit: int | None = None
    max_input: int | None = None
    prompt_format: str = "text"
    ignore_eos: bool = True
    timeout_s: float = 600.0
    headers: Headers = ()
    cache_salt: str | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Adjusted:
    """Requests whose lengths are not the trace's: prompts cut to `max_input`, outputs cut to the context length."""

    inputs_cut: int = 0
    outputs_cut: int = 0


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay measured: `records` in order of arrival, one for each of `requests` as they were sent.

    `error_samples` holds up to five of the server's own words; `words_per_token` is None when prompts are text and
    the server has no /tokenize, so that their lengths are a guess.
    """

    options: ReplayOptions
    served: Served
    requests: tuple[TraceRequest, ...]
    records: tuple[RequestRecord, ...]
    load: Load
    adjusted: Adjusted
    words_per_token: float | None
    error_samples: tuple[str, ...]


async def replay(
    options: ReplayOptions, requests: Sequence[TraceRequest], on_progress: OnProgress | None = None
) -> ReplayResult:
    """Replay `requests` against `options.url` in an open loop and return what was measured.

    Raises `TargetError` when the URL is none, nothing answers there, or it does not serve the model. Failures during
    the load are outcomes of their requests, never exceptions.
    """
    target = parse_target(options.url)
    served = await served_model(target, options.model, options.headers)
    prompt, scale = await _prompt_writer(target, served, options)
    chosen, adjusted = adjust(requests, options, served.max_model_len, exact=scale == 1.0)
    fields = RequestFields(
        served.model, options.ignore_eos, options.cache_salt, options.headers, f"tonnage-{options.seed}"
    )
    template = RequestTemplate(target, prompt, fields)
    load = await OpenLoop(
        target,
        [request.arrival_s / options.speed for request in chosen],
        lambda number: template.write(chosen[number]),
        timeout_s=options.timeout_s,
        on_progress=on_progress,
    ).run()
    records = tuple(record_of(e, r, load.start) for e, r in zip(load.exchanges, chosen, strict=True))
    said = {text: None for exchange in load.exchanges if (text := error_text(exchange))}
    return ReplayResult(options, served, chosen, records, load, adjusted, scale, tuple(said)[:5])


def adjust(
    requests: Sequence[TraceRequest], options: ReplayOptions, max_model_len: int | None, *, exact: bool = True
) -> tuple[tuple[TraceRequest, ...], Adjusted]:
    """The requests to send: the first `limit`, prompts cut to their first `max_input` tokens (so that shared prefixes
    stay shared), outputs cut so that prompt and output fit the server's context length, where it is known.

    A prompt that alone does not fit is sent as it is: the server's refusal is the result. With prompts whose length in
    tokens is not `exact` some room is left.
    """
    chosen = list(requests[: options.limit])
    cut = [request if options.max_input is None else truncated(request, options.max_input) for request in chosen]
    fitted = cut if max_model_len is None else [_fitted(request, max_model_len, exact=exact) for request in cut]
    inputs_cut = sum(a is not b for a, b in zip(chosen, cut, strict=True))
    outputs_cut = sum(a is not b for a, b in zip(cut, fitted, strict=True))
    return tuple(fitted), Adjusted(inputs_cut, outputs_cut)


def _fitted(request: TraceRequest, max_model_len: int, *, exact: bool) -> TraceRequest:
    margin = 0 if exact else 16 + request.input_length // 16
    room = max_model_len - request.input_length - margin
    if request.output_length <= room or room < 1:
        return request
    return replace(request, output_length=room)


async def _prompt_writer(target: Target, served: Served, options: ReplayOptions) -> tuple[PromptWriter, float | None]:
    if options.prompt_format == "tokens":
        return TokenPrompts(await usable_vocabulary(target, served.model, options.headers)), 1.0
    scale = await words_per_token(target, served.model, options.headers)
    return TextPrompts(scale or 1.0), scale
