"""The report document of `up`, `replay`, `bench` and `simulate`."""

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from tonnage_core.prefix_index.ceiling import ceiling
from tonnage_core.slo import RequestRecord, Slo, summarise
from tonnage_core.traces import BadLine, TraceRequest
from tonnage_loadgen.discover import FleetCache, fleet_cache
from tonnage_loadgen.errors import ReportError
from tonnage_loadgen.replay import ReplayResult
from tonnage_loadgen.timeline import timeline
from tonnage_loadgen.verdict import judge

__all__ = ["build", "document_of", "fleet_cache", "notes", "write_json"]

DEFAULT_BLOCK_SIZE = 16
"""Tokens a block where no engine says: vLLM's default on GPUs."""
SHOWN_BAD_LINES = 20


def build(
    result: ReplayResult,
    slo: Slo | None = None,
    *,
    kind: str = "replay",
    cache: FleetCache | None = None,
    bad_lines: Sequence[BadLine] = (),
    trace: str | None = None,
) -> dict[str, Any]:
    """The document of a replay: `kind` names its schema, `cache` is the room of all engines together, which bounds the
    ceiling (None: without limit).

    Latencies, `duration_s` and `goodput_rps` are engine time; `client` is wall time.
    """
    options = result.options
    wall_s = result.load.end - result.load.start
    document = document_of(
        result.records,
        result.requests,
        kind=kind,
        seed=options.seed,
        slo=slo or Slo(),
        time_scale=options.time_scale,
        duration_s=wall_s,
        cache=cache,
    )
    document["client"] = judge(result.load, result.records).document()
    document["model"] = result.served.model
    document["trace"] = {
        "name": trace,
        "bad_lines": len(bad_lines),
        "first_bad_lines": [{"line": bad.number, "reason": bad.reason} for bad in bad_lines[:SHOWN_BAD_LINES]],
    }
    document["replay"] = {
        "url": options.url,
        "speed": options.speed,
        "time_scale": options.time_scale,
        "prompt_format": options.prompt_format,
        "max_input": options.max_input,
        "inputs_cut": result.adjusted.inputs_cut,
        "outputs_cut": result.adjusted.outputs_cut,
        "words_per_token": result.words_per_token,
        "connections_opened": result.load.connections_opened,
        "resent": result.load.resent,
        "wall_s": round(wall_s, 4),
    }
    document["error_samples"] = list(result.error_samples)
    document["notes"] = list(notes(document))
    return document


def document_of(
    records: Sequence[RequestRecord],
    requests: Iterable[TraceRequest],
    *,
    kind: str,
    seed: int,
    slo: Slo,
    time_scale: float = 1.0,
    duration_s: float | None = None,
    cache: FleetCache | None = None,
) -> dict[str, Any]:
    """The part of the document that needs no generator; `simulate` builds on it (`client` is null there)."""
    document: dict[str, Any] = {"schema": f"tonnage.{kind}/1", "version": version("tonnage"), "seed": seed}
    document |= summarise(records, slo, time_scale=time_scale, duration_s=duration_s)
    block_size = DEFAULT_BLOCK_SIZE if cache is None else cache.block_size
    best = ceiling(requests, block_size, None if cache is None else cache.blocks)
    rate = best.hit_rate
    document["prefix"] |= {
        "ceiling_hit_rate": None if rate is None else round(rate, 6),
        "ceiling_hit_tokens": best.hit_tokens,
        "ceiling_blocks": best.capacity_blocks,
        "block_size": block_size,
    }
    document["client"] = None
    document["timeline"] = timeline(records, time_scale)
    return document


def notes(document: dict[str, Any]) -> Iterable[str]:
    """What a reader of the figures must know, a sentence each."""
    client, asked = document["client"], document["replay"]
    if client["bound"]:
        yield f"VOID: {client['reason']}"
    elif client["reason"]:
        yield f"{client['reason']}; the latencies include it"
    if document["trace"]["bad_lines"]:
        first, count = document["trace"]["first_bad_lines"][0], document["trace"]["bad_lines"]
        yield f"{count} bad lines left out; the first is line {first['line']}: {first['reason']}"
    if asked["inputs_cut"]:
        yield f"{asked['inputs_cut']} prompts were cut to their first {asked['max_input']} tokens"
    if asked["outputs_cut"]:
        yield f"{asked['outputs_cut']} outputs were cut to the server's context length"
    if asked["words_per_token"] is None:
        yield "the server has no /tokenize: prompts may be longer in its tokens than in the trace's"
    if document["itl_ms"]["p50"] == 0.0:
        yield "half of the tokens came in one piece with the one before: ITL shows delivery, not the engine's steps"
    if document["prefix"]["hit_tokens"] is None and document["requests"]["ok"]:
        yield "the engine does not report cached tokens (vLLM: --enable-prompt-tokens-details): hits are unknown"
    if document["prefix"]["ceiling_blocks"] is None:
        yield "the ceiling hit rate assumes a cache without limit: the engines' cache size is not known"


def write_json(document: dict[str, Any], path: Path) -> None:
    """The document as indented JSON; `ReportError` when the file cannot be written."""
    try:
        path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        raise ReportError(f"{path}: cannot be written: {error.strerror}") from error
