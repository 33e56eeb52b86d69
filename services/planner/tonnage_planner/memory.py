"""`POST /v1/memory`: the question as JSON, answered by the same function as `tonnage memory`.

Models and GPUs are named from the catalogue or sent along whole; a request never names a file of this machine.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tonnage_core.errors import BadInputError
from tonnage_core.hardware import GpuSpec, find_gpu
from tonnage_core.hardware.profile import gpu_from_profile
from tonnage_core.kv_cache.versions import parse_engine
from tonnage_core.memory.report import memory_report
from tonnage_core.memory.request import MemoryRequest
from tonnage_core.models import ModelShape, shape_from_config
from tonnage_core.parallelism import Layout
from tonnage_planner.documents import VERSION, Document
from tonnage_runtime.catalogue import load_model, model_names


class MemoryQuestion(Document):
    """A model on GPUs with engine flags; a flag left out takes the engine's default for its version."""

    model: str = Field(min_length=1, max_length=200)
    """Catalogue name; with `config`, the name to call it by."""
    config: dict[str, Any] | None = None
    """The model's config.json, for one that is not in the catalogue."""
    gpu: str | None = Field(default=None, max_length=200)
    """Name or alias of the GPU."""
    gpu_profile: dict[str, Any] | None = None
    """A measured `tonnage.gpu_profile/1` document instead of `gpu`."""
    engine: str = Field(default="vllm", max_length=64)
    """`vllm:0.19.0`, `sglang:0.5.5` or `trtllm:1.1.0`; without a version the newest known."""
    tp: int = 1
    """Tensor parallel size."""
    pp: int = 1
    """Pipeline parallel size."""
    ep: int = 1
    """Expert parallel size."""
    dp: int = 1
    """Data parallel size of attention."""
    dtype: str = Field(default="auto", max_length=32)
    """Weights: auto, bf16, fp16, fp32 or a quantised format."""
    kv_dtype: str = Field(default="auto", max_length=32)
    """KV cache: auto or a format."""
    max_model_len: int | None = None
    """Longest sequence in tokens."""
    max_num_seqs: int | None = None
    """Most sequences in a batch."""
    max_num_batched_tokens: int | None = None
    """Most tokens in a step."""
    block_size: int | None = None
    """Tokens of a KV block."""
    gpu_memory_utilization: float | None = None
    """Share of the GPU's memory the engine may take."""
    enforce_eager: bool = False
    """Without CUDA graphs."""
    pool_gib: float | None = None
    """KV pool in GiB as the engine logged it, instead of the computed one."""


class MemoryAnswer(BaseModel):
    """Sizes in GiB a GPU; null where a GPU or a pool would have to be known. `steps` is the derivation."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True, populate_by_name=True)

    schema_: str = Field(alias="schema")
    """tonnage.memory/1"""
    version: str
    """Version of Tonnage."""
    weight_gib: float
    """Weights."""
    activation_peak_gib: float
    """Largest activations of a step."""
    non_torch_gib: float
    """What the driver and the communication libraries take."""
    cuda_graph_gib: float
    """Captured graphs."""
    non_kv_total_gib: float
    """Everything but the KV pool."""
    kv_cache_gib: float | None
    """The KV pool."""
    kv_bytes_per_token: float
    """KV bytes of one token."""
    kv_cache_blocks: int | None
    """Blocks of the pool."""
    kv_cache_tokens: int | None
    """Tokens the pool holds."""
    max_concurrency_x: float | None
    """Sequences of `max_model_len` the pool holds."""
    fits: bool | None
    """Whether the engine starts with these flags."""
    binding: str
    """What limits it."""
    max_fitting_model_len: int | None
    """Longest sequence that fits."""
    steps: list[dict[str, Any]]
    """Name, formula, value and unit of each step."""


def answer(question: MemoryQuestion) -> dict[str, Any]:
    """The `tonnage.memory/1` document; raises `BadInputError` for what no engine takes."""
    engine, version = parse_engine(question.engine)
    flags = question.model_dump(exclude={"model", "config", "gpu", "gpu_profile", "engine", "tp", "pp", "ep", "dp"})
    request = MemoryRequest(
        named_shape(question.model, question.config),
        named_gpu(question.gpu, question.gpu_profile),
        engine=engine,
        engine_version=version,
        layout=Layout(question.tp, question.pp, question.ep, question.dp),
        **flags,
    )
    return memory_report(request, VERSION)


def named_shape(model: str, config: dict[str, Any] | None) -> ModelShape:
    """The model of a question: its own config, else the catalogue's."""
    if config is not None:
        return shape_from_config(config, model)
    if model not in model_names():
        raise BadInputError(f"no model {model[:120]!r} in the catalogue: send its config.json as `config`")
    return load_model(model)


def named_gpu(gpu: str | None, profile: dict[str, Any] | None) -> GpuSpec | None:
    """The card of a question: a catalogue name or a measured profile, not both; None for neither."""
    if profile is None:
        return None if gpu is None else find_gpu(gpu)
    if gpu is not None:
        raise BadInputError("gpu and gpu_profile are both given: keep one")
    return gpu_from_profile(profile)
