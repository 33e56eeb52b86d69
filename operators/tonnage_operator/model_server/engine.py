"""The engine's command line: what the specification and the plan's arguments say, and what the operator adds."""

from tonnage_operator.model_server.crd import LAYOUT, ModelServerSpec
from tonnage_operator.model_server.drain import DrainTimes

PORT = 8000
WEIGHTS = "/model/weights"
"""Link to the staged snapshot, made by the init container."""


def served_path(spec: ModelServerSpec) -> str:
    """What the engine loads: the staged files, a Hugging Face name, or a path as it is."""
    return WEIGHTS if spec.staged else spec.uri.removeprefix("hf://").removeprefix("file://")


def command(spec: ModelServerSpec, times: DrainTimes) -> list[str]:
    """The whole command. Arguments of the specification come last, in their order."""
    words = ["vllm", "serve", served_path(spec), "--host", "0.0.0.0", "--port", str(PORT)]
    words += ["--served-model-name", spec.model, "--shutdown-timeout", str(times.engine_s)]
    if spec.revision and not spec.staged:
        words += ["--revision", spec.revision]
    if spec.gpus > 1 and not any(flag in spec.args for flag in LAYOUT):
        words += ["--tensor-parallel-size", str(spec.gpus)]
    if spec.lora_slots:
        words += ["--enable-lora", "--max-loras", str(spec.lora_slots)]
    if spec.sleeps:
        words += ["--enable-sleep-mode"]
    given = {flag: value for flag, value in spec.args.items() if flag not in ("enable-lora", "max-loras")}
    for flag, value in given.items():
        if value is False:
            # A switch that is off is the engine's default; its negation is a flag of its own.
            words += [f"--no-{flag}"]
        else:
            words += [f"--{flag}"] if value is True else [f"--{flag}", str(value)]
    return words


def environment(spec: ModelServerSpec) -> list[dict[str, object]]:
    """Variables: caches on writable volumes, a name for the user without an entry, and what control calls need."""
    values = {
        "HOME": "/tmp",
        "USER": "engine",
        "XDG_CACHE_HOME": "/tmp/cache",
        "HF_HOME": "/tmp/huggingface",
        "VLLM_CACHE_ROOT": "/tmp/vllm",
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor",
        "TRITON_CACHE_DIR": "/tmp/triton",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if spec.lora_slots:
        values["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    if spec.sleeps:
        # Serves /sleep and /wake_up, and other control calls: hence the NetworkPolicy that comes with it.
        values["VLLM_SERVER_DEV_MODE"] = "1"
    own = {str(one.get("name")) for one in spec.env}
    return [{"name": k, "value": v} for k, v in values.items() if k not in own] + [dict(one) for one in spec.env]
