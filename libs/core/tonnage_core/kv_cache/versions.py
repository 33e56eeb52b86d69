"""What differs between engine versions, in one dated table.

Every row holds only what changed in that release; facts add up in order. Sources: release notes, source and issue
threads named beside each row, and boot logs published by users. A version newer than the last row uses the last row,
and the answer says so.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Any

from tonnage_core.errors import BadInputError


class UnknownEngineError(BadInputError):
    """An engine name or version that the table does not hold."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """How one engine release turns a card into a KV pool, and a pool into blocks and log lines.

    `fraction_of`: what the memory fraction multiplies: "total" memory, the "static" part (weights and pool, of total)
    or what is "free" after loading. Sizes in bytes, `*_gib` in GiB.
    """

    engine: str
    version: str = ""
    date: str = ""
    fraction_of: str = "total"
    default_fraction: float = 0.90
    chunked_prefill: bool = True
    """Off: the profile run holds a whole prompt of max_model_len tokens."""
    default_batched_tokens: int = 2048
    large_card_batched_tokens: int = 8192
    default_seqs: int = 256
    large_card_seqs: int = 1024
    block: int = 16
    hybrid_groups: bool = True
    """Off: sliding and chunked layers are cached at full length."""
    chunked_groups: bool = True
    """Off: chunked layers are cached at full length although sliding ones are grouped."""
    group_slack: float = 1.25
    """Groups are padded to the largest layer type when it is smaller than this times the smallest."""
    tokens_from_concurrency: bool = False
    """The logged token count is concurrency x max_model_len, no longer blocks // groups x block."""
    recurrent_pages: int = 1
    """State pages a request and recurrent group: two when prefix caching is on for hybrid models."""
    checkpoint_cache_type: bool = True
    """`auto` takes the cache type a checkpoint was calibrated for."""
    graphs_in_pool: bool = False
    """The estimate of graph memory is taken from the pool."""
    sampler_bytes: float = 14
    """Profiled bytes a logit: 2 as computed, 4 as float32, and what sampling copies."""
    sampler_rows: int = 132
    """Rows of float32 logits that the top-k kernel keeps, one a multiprocessor."""
    experts_workspace: bool = True
    """Expert kernels keep their buffers while the sampler is profiled."""
    non_torch_gib: float = 0.25
    non_torch_group_gib: float = 2.08
    """The same with two tensor-parallel ranks (NCCL, custom and fused all-reduce buffers)."""
    non_torch_rank_gib: float = 0.055
    """What each further rank adds."""
    non_torch_pipeline_gib: float = 0.42
    """What NCCL alone adds between pipeline stages."""
    reserved_factor: float = 1.0
    """Old profilers count all memory the allocator ever reserved, not the peak in use."""
    mxfp4_padding: str = "kernel"
    """What MXFP4 expert kernels pad: "columns" (Triton), or "kernel" (Marlin: both sides)."""
    graph_transient: bool = False
    """The graph estimate of recurrent models books part of the forward peak."""


@dataclass(frozen=True, slots=True)
class Release:
    """One row: an engine release, its date and what it changed."""

    engine: str
    version: str
    date: str
    source: str
    changes: dict[str, Any] = field(default_factory=dict)


_V0 = {
    "chunked_prefill": False,
    "hybrid_groups": False,
    "checkpoint_cache_type": False,
    "sampler_bytes": 0,
    "sampler_rows": 0,
    "experts_workspace": False,
    "non_torch_gib": 0.35,
    "non_torch_group_gib": 0.35,
    "large_card_batched_tokens": 2048,
    "large_card_seqs": 256,
}

RELEASES: tuple[Release, ...] = (
    Release(
        "vllm",
        "0.1.0",
        "2023-06-20",
        "vLLM V0; reserved memory is what the card lost, vllm#5248",
        {**_V0, "reserved_factor": 5.0},
    ),
    Release("vllm", "0.6.3", "2024-10-14", "profiler reports the torch peak, vllm#10517", {"reserved_factor": 1.0}),
    Release("vllm", "0.7.0", "2025-01-27", "vllm#13061", {"non_torch_gib": 0.25, "non_torch_group_gib": 0.25}),
    Release(
        "vllm",
        "0.8.0",
        "2025-03-18",
        "V1 is the default engine: chunked prefill, sampler in the profile run",
        {
            "chunked_prefill": True,
            "sampler_bytes": 38,
            "non_torch_gib": 0.13,
            "non_torch_group_gib": 0.55,
            "large_card_batched_tokens": 8192,
        },
    ),
    Release("vllm", "0.8.5", "2025-04-28", "1,024 sequences on cards of 70 GiB and more", {"large_card_seqs": 1024}),
    Release(
        "vllm",
        "0.10.0",
        "2025-07-24",
        "hybrid KV cache groups, vLLM v1/core/kv_cache_utils.py",
        {"hybrid_groups": True},
    ),
    Release("vllm", "0.10.1", "2025-08-18", "vllm#21707: chunked layers out of the groups", {"chunked_groups": False}),
    Release("vllm", "0.11.1", "2025-11-18", "Triton MXFP4 experts on Hopper, vllm#33155", {"mxfp4_padding": "columns"}),
    Release(
        "vllm",
        "0.12.0",
        "2025-12-03",
        "cache type from the checkpoint, chunked layers back in groups",
        {"checkpoint_cache_type": True, "chunked_groups": True},
    ),
    Release(
        "vllm",
        "0.17.0",
        "2026-03-06",
        "top-k and top-p in one kernel: no sort",
        {"sampler_bytes": 14, "sampler_rows": 132},
    ),
    Release(
        "vllm",
        "0.18.0",
        "2026-03-20",
        "public boot logs of a version sweep",
        {"non_torch_gib": 0.25, "non_torch_group_gib": 2.08},
    ),
    Release(
        "vllm",
        "0.19.0",
        "2026-04-03",
        "expert workspaces kept, Marlin MXFP4 experts: public boot logs",
        {"experts_workspace": True, "mxfp4_padding": "kernel"},
    ),
    Release(
        "vllm",
        "0.21.0",
        "2026-05-15",
        "gpu_worker.py: graph estimate on by default; vllm#42206: tokens from concurrency",
        {"graphs_in_pool": True, "tokens_from_concurrency": True, "group_slack": 1.5},
    ),
    Release(
        "vllm",
        "0.22.0",
        "2026-06-01",
        "config/cache.py: 0.92; hybrid models run with prefix caching (default from 0.28, vllm#50991)",
        {"default_fraction": 0.92, "recurrent_pages": 2},
    ),
    Release(
        "vllm",
        "0.26.0",
        "2026-07-31",
        "vllm#50780, vllm#52872: graph estimate of recurrent models",
        {"graph_transient": True},
    ),
    Release("vllm", "0.33.0", "2026-11-20", "config/cache.py and metrics/loggers.py of the wheel", {}),
    Release(
        "sglang",
        "0.3.0",
        "2024-09-04",
        "server_args.py: static fraction of what was free before loading",
        {
            "fraction_of": "static",
            "default_fraction": 0.88,
            "block": 1,
            "hybrid_groups": False,
            "default_batched_tokens": 2048,
            "large_card_batched_tokens": 8192,
            "sampler_bytes": 10,
            "sampler_rows": 0,
            "experts_workspace": False,
            "non_torch_gib": 0.6,
            "non_torch_group_gib": 1.5,
        },
    ),
    Release("sglang", "0.5.0", "2025-08-23", "sliding-window pool apart from the full one", {"hybrid_groups": True}),
    Release("sglang", "0.5.10", "2026-04-02", "server_args.py: unchanged reserves", {}),
    Release(
        "trtllm",
        "0.8.0",
        "2024-02-29",
        "executor: fraction of the memory that is free after loading",
        {
            "fraction_of": "free",
            "default_fraction": 0.90,
            "block": 64,
            "default_batched_tokens": 8192,
            "large_card_batched_tokens": 8192,
            "default_seqs": 256,
            "large_card_seqs": 256,
            "sampler_bytes": 10,
            "sampler_rows": 0,
            "experts_workspace": False,
            "hybrid_groups": False,
            "non_torch_gib": 0.8,
            "non_torch_group_gib": 2.0,
        },
    ),
    Release(
        "trtllm",
        "1.0.0",
        "2025-09-24",
        "tokens_per_block 32, max_batch_size 2048",
        {"block": 32, "large_card_seqs": 2048},
    ),
    Release("trtllm", "1.3.0", "2026-03-10", "unchanged defaults", {}),
)

ENGINES = ("vllm", "sglang", "trtllm", "nim")
_SAME_AS = {"nim": "trtllm", "tensorrt-llm": "trtllm", "tensorrt_llm": "trtllm"}
_IMAGE_TAGS = {"gpt-oss-dev": "0.10.1"}


def version_key(version: str) -> tuple[int, ...]:
    """Numbers of a release, for comparison; release candidates and posts count as their release."""
    found = re.fullmatch(
        r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?(?:[.+-]?[a-z][\w.+-]*|\.\d[\w.+-]*|[+-][\w.+-]*)?", version
    )
    if found is None:
        raise UnknownEngineError(f"engine version {version[:40]!r} is not a release number or nightly-YYYYMMDD")
    return tuple(int(part or 0) for part in found.groups())


def engine_facts(engine: str, version: str = "") -> tuple[EngineFacts, tuple[str, ...]]:
    """The facts of a release, and notes on what had to be assumed. An empty version means the newest row."""
    name = _SAME_AS.get(engine.lower(), engine.lower())
    rows = [release for release in RELEASES if release.engine == name]
    if not rows:
        raise UnknownEngineError(f"unknown engine {engine[:40]!r}; use one of {', '.join(ENGINES)}")
    chosen, notes = _rows_up_to(rows, "" if engine.lower() == "nim" else version)
    facts = EngineFacts(name, version or chosen[-1].version, chosen[-1].date)
    for release in chosen:
        facts = replace(facts, **release.changes)
    if engine.lower() == "nim":
        notes = (*notes, "nim: counted as TensorRT-LLM, the engine inside is not stated")
    return facts, notes


def _rows_up_to(rows: list[Release], version: str) -> tuple[list[Release], tuple[str, ...]]:
    version = _IMAGE_TAGS.get(version, version)
    if not version:
        return rows, (
            f"engine version not given: facts of {rows[-1].engine} {rows[-1].version} ({rows[-1].date}) used",
        )
    nightly = re.fullmatch(r"nightly-(\d{4})(\d{2})(\d{2})", version)
    if nightly:
        date = "-".join(nightly.groups())
        return [row for row in rows if row.date <= date] or rows[:1], ()
    wanted = version_key(version)
    chosen = [row for row in rows if version_key(row.version) <= wanted]
    if not chosen:
        return rows[:1], (f"{rows[0].engine} {version} is older than the table: facts of {rows[0].version} used",)
    if wanted > version_key(rows[-1].version):
        return rows, (
            f"{rows[0].engine} {version} is newer than the table: facts of {rows[-1].version} ({rows[-1].date}) used",
        )
    return chosen, ()


def parse_engine(reference: str) -> tuple[str, str]:
    """`vllm:0.19.0` -> ("vllm", "0.19.0"); without a colon the version is empty."""
    name, _, version = reference.strip().partition(":")
    return name.lower(), version
