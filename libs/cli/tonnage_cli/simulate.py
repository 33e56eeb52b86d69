"""`tonnage simulate`: a trace through a fleet of engine models in this process, on simulated time."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import click

from tonnage_cli.finite import FiniteRange
from tonnage_cli.output import json_option, print_json, print_table
from tonnage_cli.what_if import COLUMNS, compared, read_change, what_if_rows
from tonnage_core.engine.adapter_mix import AdapterMix
from tonnage_core.engine.defaults import GPU_MEMORY_UTILIZATION, engine_config_for
from tonnage_core.engine.fleet import Fleet, FleetConfig, FleetResult
from tonnage_core.engine.step_time import step_time_for
from tonnage_core.engine.types import EngineConfig
from tonnage_core.hardware import GpuSpec
from tonnage_core.models import ModelShape
from tonnage_core.scheduling.hold import HOLD_SHARE, HoldRule
from tonnage_core.scheduling.profile import POLICIES
from tonnage_core.slo import Slo
from tonnage_core.traces import Trace, TraceRequest, truncated
from tonnage_loadgen.discover import FleetCache
from tonnage_loadgen.report import document_of
from tonnage_loadgen.trace_file import read_trace
from tonnage_runtime.catalogue import load_gpu, load_model

_POSITIVE = FiniteRange(0, min_open=True)


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--replicas", type=click.IntRange(1, 4096), default=4, show_default=True, help="Engines in the fleet.")
@click.option("--policy", type=click.Choice(sorted(POLICIES)), default="prefix", show_default=True, help="Routing.")
@click.option("--model", default="meta-llama/Llama-3.1-8B", show_default=True, help="Catalogue name or config.json.")
@click.option("--gpu", default="H200-SXM-141GB", show_default=True, help="Catalogue name or GpuProfile.")
@click.option("--tp", type=click.IntRange(1, 64), default=1, show_default=True, help="GPUs a replica.")
@click.option("--limit", type=click.IntRange(1), help="Only the first N requests.")
@click.option("--max-input", type=click.IntRange(1), help="Cut longer prompts to their first N tokens.")
@click.option("--rate-scale", type=_POSITIVE, default=1.0, show_default=True, help="Arrivals come this much faster.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--num-blocks", type=click.IntRange(2), help="KV blocks an engine; by default what the GPU has left.")
@click.option("--block-size", type=click.IntRange(1), default=16, show_default=True, help="Tokens a block.")
@click.option("--kv-dtype", default="auto", show_default=True)
@click.option(
    "--gpu-memory-utilization",
    type=FiniteRange(0, 1, min_open=True),
    default=GPU_MEMORY_UTILIZATION,
    show_default=True,
)
@click.option("--max-model-len", type=click.IntRange(2), help="By default what the model and the blocks allow.")
@click.option("--max-num-seqs", type=click.IntRange(1), help="By default vLLM's for the GPU.")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), help="By default vLLM's for the GPU.")
@click.option("--batching", type=click.Choice(["continuous", "static"]), default="continuous", show_default=True)
@click.option("--preemption", type=click.Choice(["recompute", "swap"]), default="recompute", show_default=True)
@click.option("--swap-blocks", type=click.IntRange(0), help="Host blocks for swapped requests; by default no limit.")
@click.option("--long-prefill-token-threshold", type=click.IntRange(0), default=0, show_default=True)
@click.option("--no-prefix-caching", is_flag=True, help="Engines without a prefix cache.")
@click.option("--long-replicas", type=click.IntRange(0), default=0, help="Replicas for prompts from 8k tokens on.")
@click.option("--adapters", type=click.IntRange(0, 100_000), default=0, help="LoRA adapters that requests ask for.")
@click.option("--adapter-zipf", type=FiniteRange(0, 10), default=1.0, show_default=True, help="0: all alike.")
@click.option("--adapter-slots", type=click.IntRange(1), default=8, show_default=True, help="On the GPU at once.")
@click.option("--adapter-load-s", type=FiniteRange(0), default=0.02, show_default=True, help="Host to GPU.")
@click.option("--step-jitter", type=FiniteRange(0, 1, max_open=True), default=0.0, show_default=True)
@click.option("--slo-ttft-ms", type=_POSITIVE, default=2000.0, show_default=True)
@click.option("--slo-ttft-ms-per-prompt-token", type=FiniteRange(0), default=0.0, show_default=True)
@click.option("--slo-tpot-ms", type=_POSITIVE, default=50.0, show_default=True)
@click.option("--slo-percentile", type=FiniteRange(0, 100), default=99.0, show_default=True)
@click.option(
    "--hold-share",
    type=FiniteRange(0, 1),
    default=HOLD_SHARE,
    show_default=True,
    help="Of the TTFT limit, for which policy prefix holds prompts back that would break answers; 0: not at all.",
)
@click.option("--strict", is_flag=True, help="Stop at the first bad line of the trace.")
@click.option("--what-if", multiple=True, metavar="OPTION=VALUE[,…]", help="Run again with these changes; repeatable.")
@json_option
@click.pass_context
def command(context: click.Context, /, trace: Path, *, as_json: bool, what_if: tuple[str, ...], **given: Any) -> int:
    """Run a Mooncake JSONL or Azure CSV trace through the discrete-event fleet.

    No server and no tokens: arrivals, routing, batching, paging and step times are computed, so that an hour of traffic
    takes seconds. Equal seeds give equal decisions. Each `--what-if policy=round_robin` or
    `--what-if preemption=swap,num-blocks=900` runs the trace again and compares. Exit 1 when a request fits no engine.
    """
    changes = [read_change(text, context) for text in what_if]
    read = read_trace(trace, strict=given["strict"])
    document = simulate(read, trace.name, given)
    if changes:
        others = [simulate(read, trace.name, given | change.values) for change in changes]
        document["what_if"] = [compared(document, change, other) for change, other in zip(changes, others, strict=True)]
    if as_json:
        print_json(document)
    else:
        _show(document)
    return 0 if document["requests"]["errors"] == 0 else 1


def simulate(trace: Trace, name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The report of one run; `given` are the command's options by name."""
    shape, gpu = load_model(given["model"]), load_gpu(given["gpu"])
    engine = _engine_config(shape, gpu, given)
    requests = _requests(trace, given)
    profile = POLICIES[given["policy"]]
    config = FleetConfig(
        replicas=given["replicas"],
        engine=engine,
        profile=profile,
        model=shape.name,
        seed=given["seed"],
        rate_scale=given["rate_scale"],
        long_replicas=given["long_replicas"],
        adapters=AdapterMix(given["adapters"], given["adapter_zipf"], given["seed"]) if given["adapters"] else None,
        hold=HoldRule(_slo(given), given["hold_share"]) if profile.spares_answers else None,
    )
    step_time = step_time_for(shape, gpu, tp=given["tp"], kv_dtype=given["kv_dtype"])
    result = Fleet(config, step_time, Random(given["seed"])).run(requests)
    return _document(result, requests, name, trace, config, gpu, given)


def _slo(given: dict[str, Any]) -> Slo:
    return Slo(
        given["slo_ttft_ms"], given["slo_tpot_ms"], given["slo_percentile"], given["slo_ttft_ms_per_prompt_token"]
    )


def _engine_config(shape: ModelShape, gpu: GpuSpec, given: dict[str, Any]) -> EngineConfig:
    """What the options leave open follows from the model and the GPU."""
    config = engine_config_for(
        shape, gpu, utilization=given["gpu_memory_utilization"], **{name: given[name] for name in _SIZES}
    )
    return replace(
        config,
        batching=given["batching"],
        preemption=given["preemption"],
        enable_prefix_caching=not given["no_prefix_caching"],
        swap_blocks=given["swap_blocks"],
        long_prefill_token_threshold=given["long_prefill_token_threshold"],
        adapter_slots=given["adapter_slots"] if given["adapters"] else 0,
        adapter_host_slots=given["adapters"],
        adapter_load_s=given["adapter_load_s"],
        step_jitter=given["step_jitter"],
    )


_SIZES = (
    "tp",
    "kv_dtype",
    "block_size",
    "num_blocks",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
)


def _requests(trace: Trace, given: dict[str, Any]) -> list[TraceRequest]:
    chosen = trace.requests[: given["limit"]]
    if given["max_input"] is None:
        return list(chosen)
    return [truncated(request, given["max_input"]) for request in chosen]


def _document(
    result: FleetResult,
    requests: list[TraceRequest],
    name: str,
    trace: Trace,
    config: FleetConfig,
    gpu: GpuSpec,
    given: dict[str, Any],
) -> dict[str, Any]:
    engine = config.engine
    document = document_of(
        result.records,
        requests,
        kind="simulate",
        seed=config.seed,
        slo=_slo(given),
        duration_s=result.duration_s,
        cache=FleetCache(engine.block_size, (engine.num_blocks - 1) * config.replicas),
    )
    counters = result.counters
    return document | {
        "replicas": config.replicas,
        "gpu_hours": round(result.gpu_hours * given["tp"], 6),
        "preemptions": counters.preemptions,
        "decisions_sha256": result.decisions_sha256,
        "policy": given["policy"],
        "model": config.model,
        "gpu": gpu.name,
        "rate_scale": config.rate_scale,
        "trace": {"name": name, "bad_lines": len(trace.bad_lines)},
        "engine": {field: getattr(engine, field) for field in _ENGINE_FIELDS},
        "counters": {field: getattr(counters, field) for field in _COUNTER_FIELDS},
        "busy_share": _share(counters.busy_s, result.duration_s * config.replicas),
    }


_ENGINE_FIELDS = (
    "num_blocks",
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "batching",
    "preemption",
    "enable_prefix_caching",
)
_COUNTER_FIELDS = (
    "query_tokens",
    "hit_tokens",
    "generation_tokens",
    "steps",
    "evicted_blocks",
    "swapped_out_blocks",
    "adapter_loads",
    "adapter_fetches",
)


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 6) if whole else None


def _show(document: dict[str, Any]) -> None:
    rows = [[name, *(document[name][column] for column in ("p50", "p90", "p99", "mean"))] for name in _LATENCIES]
    title = f"{document['replicas']} x {document['model']} on {document['gpu']}, policy {document['policy']}"
    print_table(title, ["", "p50", "p90", "p99", "mean"], rows)
    prefix = document["prefix"]
    summary = [
        ["requests ok / errors", f"{document['requests']['ok']} / {document['requests']['errors']}"],
        ["SLO attainment", document["slo_attainment"]],
        ["goodput, requests/s", document["goodput_rps"]],
        ["prefix hit rate / ceiling", f"{prefix['hit_rate']} / {prefix['ceiling_hit_rate']}"],
        ["output tokens", document["output_tokens"]],
        ["preemptions", document["preemptions"]],
        ["GPU busy share", document["busy_share"]],
        ["GPU hours", document["gpu_hours"]],
        ["simulated time, s", document["duration_s"]],
        ["decisions", document["decisions_sha256"][:16]],
    ]
    print_table("Run", ["", "value"], summary)
    if document.get("what_if"):
        print_table("What if", COLUMNS, what_if_rows(document))


_LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
