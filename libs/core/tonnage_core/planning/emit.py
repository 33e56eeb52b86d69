"""What a plan hands over: the engine's command line and a ModelServer manifest, both held to the memory formulas."""

import json
import re
from collections.abc import Mapping
from typing import Any

from tonnage_core.errors import BadInputError
from tonnage_core.hardware import GpuSpec
from tonnage_core.memory import Adapters, MemoryRequest, Speculation, plan_memory
from tonnage_core.memory.report import verdict_of
from tonnage_core.models import ModelShape
from tonnage_core.parallelism import Layout
from tonnage_core.planning.candidate import RANKS, Sized, explicit
from tonnage_core.planning.evaluate import Checked
from tonnage_core.planning.spec import Draft, PlanSpec

NAMES = {
    "vllm": {
        "tp": "tensor-parallel-size",
        "pp": "pipeline-parallel-size",
        "dp": "data-parallel-size",
        "max_model_len": "max-model-len",
        "max_num_seqs": "max-num-seqs",
        "max_num_batched_tokens": "max-num-batched-tokens",
        "gpu_memory_utilization": "gpu-memory-utilization",
        "kv_dtype": "kv-cache-dtype",
        "precision": "quantization",
    },
    "sglang": {
        "tp": "tp-size",
        "pp": "pp-size",
        "dp": "dp-size",
        "ep": "ep-size",
        "max_model_len": "context-length",
        "max_num_seqs": "max-running-requests",
        "max_num_batched_tokens": "chunked-prefill-size",
        "gpu_memory_utilization": "mem-fraction-static",
        "kv_dtype": "kv-cache-dtype",
        "precision": "quantization",
    },
    "trtllm": {
        "tp": "tp_size",
        "pp": "pp_size",
        "ep": "ep_size",
        "max_model_len": "max_seq_len",
        "max_num_seqs": "max_batch_size",
        "max_num_batched_tokens": "max_num_tokens",
        "gpu_memory_utilization": "kv_cache_free_gpu_memory_fraction",
    },
}
"""Setting -> the engine's name for it (`vllm serve`, `sglang.launch_server`, `trtllm-serve`)."""
_FP8_CACHE = {"sglang": "fp8_e4m3"}


def engine_args(spec: PlanSpec, sized: Sized) -> dict[str, Any]:
    """The engine's arguments by its own names; true alone for a switch."""
    flags, config = sized.memory.flags, explicit(sized)
    engine = sized.memory.facts.engine
    names, layout = NAMES[engine], config.layout
    values: dict[str, Any] = {name: size for name in ("tp", "pp", "dp", "ep") if (size := getattr(layout, name)) > 1}
    values |= {
        "max_model_len": flags.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.batched_tokens,
        "gpu_memory_utilization": flags.fraction,
    }
    if config.kv_dtype != "auto":
        values["kv_dtype"] = _FP8_CACHE.get(engine, "fp8") if config.kv_dtype == "fp8" else config.kv_dtype
    if config.precision in ("fp8", "w8a8") and not spec.shape.quantization.rules:
        values["precision"] = "fp8" if config.precision == "fp8" else "compressed-tensors"
    args = {names[name]: value for name, value in values.items() if name in names}
    return args | (_vllm_extras(spec, sized) if engine == "vllm" else {})


def _vllm_extras(spec: PlanSpec, sized: Sized) -> dict[str, Any]:
    config = sized.config
    extras: dict[str, Any] = {}
    if config.layout.ep > 1:
        extras["enable-expert-parallel"] = True
    if (load := spec.traffic.adapters) is not None:
        rank = next((rank for rank in RANKS if rank >= load.rank), RANKS[-1])
        extras |= {"enable-lora": True, "max-loras": sized.adapter_slots, "max-lora-rank": rank}
        extras["max-cpu-loras"] = max(load.count, sized.adapter_slots)
    if config.draft is not None:
        extras["speculative-config"] = json.dumps(_speculation(config.draft, config.drafted))
    return extras


def _speculation(draft: Draft, drafted: int) -> dict[str, Any]:
    """vLLM's `speculative_config`; it calls a model of its own `draft_model`."""
    method = "draft_model" if draft.method == "draft" else draft.method
    return {"method": method} | ({"model": draft.model} if draft.model else {}) | {"num_speculative_tokens": drafted}


SERVE = {
    "vllm": ("vllm", "serve", "{model}"),
    "sglang": ("python", "-m", "sglang.launch_server", "--model-path", "{model}"),
    "trtllm": ("trtllm-serve", "{model}"),
}


def serve_command(spec: PlanSpec, sized: Sized) -> list[str]:
    """The whole command that starts one replica."""
    words = [word.format(model=spec.model) for word in SERVE[sized.memory.facts.engine]]
    return words + command_line(engine_args(spec, sized))


def command_line(args: Mapping[str, Any]) -> list[str]:
    """The arguments as a list for a shell or a container; a speculative configuration stays one word."""
    words: list[str] = []
    for name, value in args.items():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def model_server(spec: PlanSpec, best: Checked) -> dict[str, Any]:
    """The ModelServer resource of the plan."""
    sized = best.ranked.sized
    facts, load = sized.memory.facts, spec.traffic.adapters
    replicas = best.replicas or 1
    most = max(replicas, best.config.offer.most // best.config.layout.gpus)
    engine: dict[str, Any] = {"kind": facts.engine, "version": facts.version, "args": engine_args(spec, sized)}
    if load is not None:
        engine["loraSlots"] = sized.adapter_slots
    name = spec.model.rsplit("/", 1)[-1]
    return {
        "apiVersion": "tonnage.dev/v1alpha1",
        "kind": "ModelServer",
        "metadata": {"name": resource_name(name)},
        "spec": {
            "model": {"name": name, "uri": f"hf://{spec.model}"},
            "engine": engine,
            "gpu": {"class": best.config.offer.gpu.name, "count": best.config.layout.gpus},
            "slo": _slo(spec),
            "scaling": {"min": replicas, "max": min(most, 2 * replicas), "warm": 0, "toZero": False, "mode": "keda"},
            "drain": {"timeoutSeconds": 300},
        },
    }


def resource_name(name: str) -> str:
    """A Kubernetes name of at most 63 characters."""
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:63].strip("-") or "model"


def _slo(spec: PlanSpec) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for target in spec.targets:
        metric = {"ttft_ms": "ttftMs", "tpot_ms": "tpotMs", "e2e_ms": "e2eMs"}[target.metric]
        found.setdefault(metric, {})[f"p{target.percent:g}"] = target.limit_ms
    return found


def check_manifest(
    manifest: Mapping[str, Any], shape: ModelShape, gpu: GpuSpec, longest: int, draft: ModelShape | None = None
) -> list[str]:
    """What is wrong with a ModelServer's engine arguments; empty when the engine starts and holds the longest request,
    beside the `draft` model where it has one.

    The arguments are read back from the manifest, so that what is emitted is what is checked: TP divides heads and
    vocabulary, max_model_len is within the model and the pool, the pool holds a sequence.
    """
    engine = manifest["spec"]["engine"]
    kind, args = engine["kind"], dict(engine["args"])
    back = {flag: name for name, flag in NAMES[kind].items()}
    given = {back[flag]: value for flag, value in args.items() if flag in back}
    tp, pp, dp = (int(given.get(name, 1)) for name in ("tp", "pp", "dp"))
    ep = tp * dp if args.get("enable-expert-parallel") else int(given.get("ep", 1))
    drafting = json.loads(args.get("speculative-config", "null"))
    quantised = given.get("precision") is not None and not shape.quantization.rules
    try:
        layout = Layout(tp, pp, ep, dp)
        plan = plan_memory(
            MemoryRequest(
                shape=shape,
                gpu=gpu,
                engine=kind,
                engine_version=engine["version"],
                layout=layout,
                dtype={"compressed-tensors": "w8a8"}.get(given["precision"], given["precision"])
                if quantised
                else "auto",
                kv_dtype="fp8" if str(given.get("kv_dtype", "")).startswith("fp8") else "auto",
                max_model_len=given["max_model_len"],
                max_num_seqs=given["max_num_seqs"],
                max_num_batched_tokens=given["max_num_batched_tokens"],
                gpu_memory_utilization=given["gpu_memory_utilization"],
                adapters=Adapters(args["max-loras"], args["max-lora-rank"]) if "max-loras" in args else None,
                speculation=Speculation(drafting["num_speculative_tokens"], draft) if drafting else None,
            )
        )
    except BadInputError as error:
        return [str(error)]
    fits, _, reason = verdict_of(plan)
    problems = [] if fits else [reason]
    if layout.gpus != manifest["spec"]["gpu"]["count"]:
        problems.append(f"gpu.count is {manifest['spec']['gpu']['count']}; the arguments need {layout.gpus}")
    if drafting and "model" not in drafting and drafting["method"] != "ngram":
        problems.append(f"{drafting['method']} names no checkpoint to draft with; give search.speculation its model")
    if given["max_model_len"] < longest:
        problems.append(f"max_model_len {given['max_model_len']:,} is below the longest request of {longest:,} tokens")
    return problems
