"""`tonnage memory`: what a model takes on GPUs, what its KV pool serves, and whether it fits."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from tonnage_cli.output import json_option, print_json, print_table
from tonnage_core.errors import BadInputError
from tonnage_core.kv_cache import parse_engine
from tonnage_core.memory import Adapters, MemoryRequest, Speculation, memory_report
from tonnage_core.memory.page import memory_page
from tonnage_core.parallelism import Layout
from tonnage_runtime.catalogue import load_gpu, load_model

_PARTS = (
    ("weight_gib", "weights"),
    ("activation_peak_gib", "activation peak"),
    ("non_torch_gib", "outside torch"),
    ("cuda_graph_gib", "CUDA graphs"),
    ("non_kv_total_gib", "everything but KV"),
    ("kv_cache_gib", "KV pool"),
)
_CAPACITY = (
    ("kv_bytes_per_token", "bytes of one token"),
    ("block_size", "tokens a block"),
    ("kv_cache_blocks", "blocks"),
    ("kv_cache_tokens", "tokens"),
    ("max_model_len", "max_model_len"),
    ("max_concurrency_x", "sequences of max_model_len"),
    ("max_fitting_model_len", "longest max_model_len that fits"),
    ("fixed_gib_per_request", "least GiB of a request"),
)


@click.command()
@click.option("--model", required=True, help="Catalogue name, directory with a config.json, or the file itself.")
@click.option("--gpu", help="GPU name or alias, or the path of a GpuProfile.")
@click.option("--engine", default="vllm", show_default=True, help="Engine and version, such as vllm:0.19.0.")
@click.option("--tp", type=int, default=1, show_default=True, help="Tensor-parallel size of attention.")
@click.option("--pp", type=int, default=1, show_default=True, help="Pipeline stages.")
@click.option("--ep", type=int, default=1, show_default=True, help="Ranks that experts are spread over.")
@click.option("--dp", type=int, default=1, show_default=True, help="Data-parallel size of attention.")
@click.option("--dcp", type=int, default=1, show_default=True, help="Decode context-parallel size.")
@click.option("--dtype", default="auto", show_default=True, help="Weights: auto, bf16, fp16, fp32 or a weight format.")
@click.option("--kv-dtype", default="auto", show_default=True, help="Cache elements: auto, bf16, fp8, fp8_ds_mla, …")
@click.option("--max-model-len", type=int, help="Longest sequence; by default what the model is made for.")
@click.option("--max-num-seqs", type=int, help="Sequences at once; by default the engine's.")
@click.option("--max-num-batched-tokens", type=int, help="Tokens of one step; by default the engine's.")
@click.option("--block-size", type=int, help="Tokens of a cache block; by default the engine's.")
@click.option("--gpu-memory-utilization", type=float, help="Memory fraction, with the engine's meaning of it.")
@click.option("--gpu-memory-gib", type=float, help="Memory as CUDA reports it, instead of the catalogue's.")
@click.option("--enforce-eager", is_flag=True, help="No CUDA graphs.")
@click.option("--prefix-caching/--no-prefix-caching", default=None, help="Recurrent layers keep two states with it on.")
@click.option("--no-hybrid-groups", is_flag=True, help="Cache windowed layers at full length.")
@click.option("--pool-gib", type=float, help="KV pool of each GPU, as the engine logged it.")
@click.option("--lora-slots", type=int, help="Adapters resident at once.")
@click.option("--lora-rank", type=click.IntRange(1, 4096), default=16, show_default=True, help="Largest adapter rank.")
@click.option("--draft-model", help="Model of speculative decoding, by reference.")
@click.option("--mtp-layers", type=int, default=0, show_default=True, help="Multi-token-prediction layers in use.")
@click.option("--speculative-tokens", type=int, help="Tokens drafted a step.")
@click.option("--redundant-experts", type=int, default=0, show_default=True, help="Copies for load balance.")
@click.option("--language-model-only", is_flag=True, help="Leave encoders out.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write an HTML report.")
@json_option
def command(model: str, gpu: str | None, engine: str, out: Path | None, as_json: bool, **flags: Any) -> int:
    """Weights, activation, overheads, KV pool, blocks, tokens and concurrency per GPU, each with its derivation.

    Exits with 1 when the model does not fit, with 2 when the engine would refuse the flags.
    """
    document = memory_report(_request(model, gpu, engine, flags), version("tonnage"))
    if out is not None:
        _write(out, memory_page(document))
    if as_json:
        print_json(document)
    else:
        _print(document)
    return 1 if document["fits"] is False else 0


def _request(model: str, gpu: str | None, engine: str, flags: dict[str, Any]) -> MemoryRequest:
    name, release = parse_engine(engine)
    slots, drafted = flags["lora_slots"], flags["speculative_tokens"]
    draft = load_model(flags["draft_model"]) if flags["draft_model"] else None
    if (draft is not None or flags["mtp_layers"]) and drafted is None:
        raise BadInputError("a draft needs --speculative-tokens; give how many tokens it drafts a step")
    if not 0 <= flags["mtp_layers"] <= 64:
        raise BadInputError(f"--mtp-layers is {flags['mtp_layers']}; it must be from 0 to 64")
    return MemoryRequest(
        shape=load_model(model),
        gpu=load_gpu(gpu) if gpu is not None else None,
        gpu_memory_gib=flags["gpu_memory_gib"],
        engine=name,
        engine_version=release,
        layout=Layout(flags["tp"], flags["pp"], flags["ep"], flags["dp"]),
        dtype=flags["dtype"],
        kv_dtype=flags["kv_dtype"],
        max_model_len=flags["max_model_len"],
        max_num_seqs=flags["max_num_seqs"],
        max_num_batched_tokens=flags["max_num_batched_tokens"],
        block_size=flags["block_size"],
        gpu_memory_utilization=flags["gpu_memory_utilization"],
        enforce_eager=flags["enforce_eager"],
        pool_gib=flags["pool_gib"],
        prefix_caching=flags["prefix_caching"],
        hybrid_groups=not flags["no_hybrid_groups"],
        decode_context_parallel=flags["dcp"],
        redundant_experts=flags["redundant_experts"],
        multimodal=not flags["language_model_only"],
        adapters=None if slots is None else Adapters(slots, flags["lora_rank"]),
        speculation=None if drafted is None else Speculation(drafted, draft, flags["mtp_layers"]),
    )


def _write(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise BadInputError(f"cannot write {path}: {error.strerror or error}") from error


def _print(document: dict[str, Any]) -> None:
    title = f"{document['model']} on {document['gpu'] or 'an unnamed card'}, {document['engine']}, GiB per GPU"
    print_table(title, ("part", "GiB"), [(label, _cell(document[field])) for field, label in _PARTS])
    print_table("KV cache", ("", "value"), [(label, _cell(document[field])) for field, label in _CAPACITY])
    steps = [(step["name"], step["formula"], _cell(step["value"]), step["unit"]) for step in document["steps"]]
    print_table("Derivation", ("step", "formula", "value", "unit"), steps)
    for note in document["notes"]:
        click.echo(f"note: {note}")
    word = {True: "fits", False: "does not fit", None: "unknown"}[document["fits"]]
    click.echo(f"{word} ({document['binding']}): {document['reason']}")


def _cell(value: Any) -> str | None:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) >= 1e4 else f"{value:.4f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int) else value
