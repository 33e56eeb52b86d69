"""Rows of a truth file (bench points): parse one, ask the planner the same question, compare.

The columns are those of CONTRACTS' bench points; unknown columns are ignored and `notes` is never read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite

from tonnage_core.errors import BadInputError
from tonnage_core.hardware import GpuSpec
from tonnage_core.kv_cache.capacity import used_blocks
from tonnage_core.kv_cache.specs import cache_type
from tonnage_core.memory.plan import MemoryPlan, plan_memory
from tonnage_core.memory.report import verdict_of
from tonnage_core.memory.request import MemoryRequest, RefusedError
from tonnage_core.models import ModelShape
from tonnage_core.models.caching import bytes_per_token
from tonnage_core.parallelism import Layout, LayoutError
from tonnage_core.units import GIB

LATENCY = frozenset({"ttft_ms", "tpot_ms", "output_tok_s", "prefill_tok_s_gpu", "decode_tok_s_gpu", "itl_ms", "e2e_ms"})
"""Metrics of speed, not of memory."""
MEMORY = frozenset(
    {
        "weight_gib",
        "activation_peak_gib",
        "non_torch_gib",
        "non_kv_total_gib",
        "cuda_graph_gib",
        "kv_cache_gib",
        "kv_cache_tokens",
        "kv_cache_blocks",
        "max_concurrency_x",
        "kv_bytes_per_token",
        "kv_cache_usage_perc",
        "attn_block_size_tokens",
        "kv_gib_per_sequence",
        "start_result",
    }
)
"""Metrics answered here."""


class TruthError(BadInputError):
    """A row of a truth file holds a value that cannot be read."""


@dataclass(frozen=True)
class TruthRow:
    """One measurement. `value` is None for text metrics; `text` is the value as written."""

    id: str
    metric: str
    text: str
    value: float | None
    excluded: bool
    config: str
    model: str
    gpu: str
    columns: Mapping[str, str]

    def whole(self, name: str, default: int | None = None) -> int | None:
        """A whole-number column; empty gives the default."""
        text = self.columns.get(name, "").strip()
        if not text:
            return default
        try:
            number = float(text)
        except ValueError as error:
            raise TruthError(f"row {self.id}: {name} is {text[:40]!r}, not a number") from error
        if not isfinite(number) or int(number) != number:
            raise TruthError(f"row {self.id}: {name} is {text[:40]}, not a whole number")
        return int(number)

    def number(self, name: str) -> float | None:
        """A number column; empty gives None."""
        text = self.columns.get(name, "").strip()
        if not text:
            return None
        try:
            number = float(text)
        except ValueError as error:
            raise TruthError(f"row {self.id}: {name} is {text[:40]!r}, not a number") from error
        if not isfinite(number):
            raise TruthError(f"row {self.id}: {name} is {text[:40]}, not a finite number")
        return number


def truth_row(columns: Mapping[str, str | None]) -> TruthRow:
    """A row from its columns; `id`, `metric` and `value` are required."""
    plain = {str(name): (value or "") for name, value in columns.items() if name is not None}
    for name in ("id", "metric", "value"):
        if not plain.get(name, "").strip():
            raise TruthError(f"row {plain.get('id') or '?'}: column {name} is missing or empty")
    text, metric = plain["value"].strip(), plain["metric"].strip()
    row = TruthRow(
        id=plain["id"].strip(),
        metric=metric,
        text=text,
        value=None,
        excluded=plain.get("expect", "").strip() == "exclude",
        config=plain.get("config", "").strip(),
        model=plain.get("model", "").strip(),
        gpu=plain.get("gpu", "").strip(),
        columns=plain,
    )
    if metric == "start_result":
        if text not in ("start", "fail"):
            raise TruthError(f"row {row.id}: start_result is {text[:40]!r}; it must be start or fail")
        return row
    return replace(row, value=row.number("value"))


def request_of(row: TruthRow, shape: ModelShape, gpu: GpuSpec | None, *, use_pool: bool = True) -> MemoryRequest:
    """The question a row answers. Empty columns take the engine's defaults of that version."""
    engine = row.columns.get("engine", "") or "vllm"
    engine = "vllm" if engine == "formula" else engine
    return MemoryRequest(
        shape=shape,
        gpu=gpu,
        gpu_memory_gib=row.number("gpu_mem_gib"),
        engine=engine,
        engine_version=row.columns.get("engine_version", ""),
        layout=Layout(*(row.whole(name, 1) or 1 for name in ("tp", "pp", "ep", "dp"))),
        dtype=_dtype(row.columns.get("precision", ""), shape),
        kv_dtype=row.columns.get("kv_dtype", "") or "auto",
        max_model_len=row.whole("max_model_len"),
        max_num_seqs=row.whole("max_num_seqs"),
        max_num_batched_tokens=row.whole("max_num_batched_tokens"),
        block_size=row.whole("block_size"),
        gpu_memory_utilization=row.number("gpu_memory_utilization"),
        enforce_eager=row.columns.get("enforce_eager", "").lower() in ("true", "1", "yes"),
        pool_gib=row.number("pool_gib") if use_pool else None,
        # A boot that measured something took its length, whatever the config says; a start row asks whether it does.
        allow_longer=row.metric != "start_result",
    )


def _dtype(precision: str, shape: ModelShape) -> str:
    """Weights that the config quantises follow the config; a plain config follows the column."""
    return "auto" if shape.quantization.rules or not precision else precision


def start_result(request: MemoryRequest) -> str | None:
    """start or fail; None when neither a card nor a pool is known."""
    try:
        fits = verdict_of(plan_memory(request))[0]
    except (RefusedError, LayoutError):
        return "fail"
    return None if fits is None else "start" if fits else "fail"


def predict(row: TruthRow, request: MemoryRequest, plan: MemoryPlan | None = None) -> float | None:
    """The planner's value of a row's metric; None when the row does not say enough."""
    if row.metric in ("kv_bytes_per_token", "kv_gib_per_sequence"):
        return _by_formula(row, request)
    plan = plan or plan_memory(request)
    stage, capacity = plan.stages[0], plan.capacity
    sizes = {
        "weight_gib": stage.weights + stage.extras,
        "activation_peak_gib": stage.activation,
        "non_torch_gib": stage.non_torch,
        "non_kv_total_gib": stage.non_kv,
        "cuda_graph_gib": stage.graphs,
        "kv_cache_gib": stage.pool,
    }
    if row.metric in sizes:
        size = sizes[row.metric]
        return None if size is None else size / GIB
    if row.metric == "attn_block_size_tokens":
        return float(plan.grouping.smallest_block)
    if capacity is None:
        return None
    if row.metric == "kv_cache_usage_perc":
        return _usage(row, plan)
    values = {
        "kv_cache_tokens": float(capacity.tokens),
        "kv_cache_blocks": float(capacity.blocks),
        "max_concurrency_x": capacity.concurrency,
    }
    return values[row.metric]


def _by_formula(row: TruthRow, request: MemoryRequest) -> float:
    """Bytes of a token or a sequence need no card."""
    from tonnage_core.kv_cache.versions import engine_facts

    facts, _ = engine_facts(request.engine, request.engine_version)
    kind = cache_type(request.shape, facts, request.kv_dtype)
    one = bytes_per_token(request.shape, kind, request.layout.tp, request.layout.pp)
    if row.metric == "kv_bytes_per_token":
        return float(one)
    return one * (request.max_model_len or request.shape.max_position_embeddings) / GIB


def _usage(row: TruthRow, plan: MemoryPlan) -> float | None:
    """Share of usable blocks that the row's requests hold; one block of the pool is never used."""
    prompt = row.whole("isl")
    if prompt is None or plan.capacity is None or plan.capacity.blocks < 2:
        return None
    held = used_blocks(plan.grouping, plan.rules, prompt, row.whole("concurrency", 1) or 1)
    return 100 * held / (plan.capacity.blocks - 1)
