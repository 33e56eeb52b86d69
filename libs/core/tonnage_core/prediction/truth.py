"""Latency rows of a truth file (bench points): the question each asks, and the measured points behind a curve."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from tonnage_core.hardware import GpuSpec
from tonnage_core.hardware.catalogue import names_card
from tonnage_core.memory.truth import TruthError, TruthRow
from tonnage_core.models import ModelShape
from tonnage_core.parallelism import Layout
from tonnage_core.prediction.coefficients import PRIOR, Coefficients, tags
from tonnage_core.prediction.fit import Sample
from tonnage_core.prediction.predict import load_of, model_of
from tonnage_core.prediction.published import INFERENCEX, launch_flags
from tonnage_core.prediction.request import PredictRequest
from tonnage_core.prediction.slots import slots_of

CLOSED_LOOP = frozenset({"ttft_ms", "tpot_ms", "output_tok_s"})
"""Means of a closed-loop client."""
LATENCY = CLOSED_LOOP | {"prefill_tok_s_gpu", "decode_tok_s_gpu"}
"""Metrics answered here."""
DRAWN_MEAN, DRAWN_SPREAD = 0.9, 0.2
"""InferenceX draws both lengths from 0.8 to 1.0 of the nominal ones."""
SERIES = (
    "source",
    "config",
    "engine",
    "engine_version",
    "gpu",
    "precision",
    "kv_dtype",
    "tp",
    "pp",
    "ep",
    "dp",
    "isl",
    "osl",
    "prefix_len",
)
"""Columns that rows of one latency curve have in common."""


def request_of(row: TruthRow, shape: ModelShape, gpu: GpuSpec) -> PredictRequest:
    """The question of a latency row. Raises `TruthError` where a column it needs is empty."""
    drawn = row.columns.get("source", "").startswith(INFERENCEX)
    mean, flags = DRAWN_MEAN if drawn else 1.0, launch_flags(row.columns)
    return PredictRequest(
        shape=shape,
        gpu=gpu,
        isl=_needed(row, "isl") * mean,
        osl=_needed(row, "osl") * mean,
        concurrency=_clients(row),
        prefix=row.number("prefix_len") or 0.0,
        layout=Layout(*(row.whole(name, 1) or 1 for name in ("tp", "pp", "ep", "dp"))),
        engine=row.columns.get("engine", "") or "vllm",
        engine_version=row.columns.get("engine_version", ""),
        precision=row.columns.get("precision", "") or "auto",
        kv_dtype=row.columns.get("kv_dtype", "") or flags.kv_dtype or "auto",
        max_num_seqs=row.whole("max_num_seqs"),
        max_num_batched_tokens=row.whole("max_num_batched_tokens") or flags.max_num_batched_tokens,
        gpu_memory_utilization=row.number("gpu_memory_utilization") or flags.gpu_memory_utilization,
        gpu_memory_gib=row.number("gpu_mem_gib"),
        pool_gib=row.number("pool_gib"),
        enforce_eager=row.columns.get("enforce_eager", "").lower() in ("true", "1", "yes"),
        length_spread=DRAWN_SPREAD if drawn else 0.0,
        hold_steps=flags.hold_steps,
    )


def _needed(row: TruthRow, name: str) -> float:
    value = row.number(name)
    if value is None:
        raise TruthError(f"row {row.id}: {name} is empty; a latency row needs isl, osl and concurrency")
    return value


def _clients(row: TruthRow) -> int:
    """Requests in flight; a rate of one phase alone may leave them out."""
    value = row.whole("concurrency")
    if value is None and row.metric in CLOSED_LOOP:
        raise TruthError(f"row {row.id}: concurrency is empty; a latency row needs isl, osl and concurrency")
    return 1 if value is None else value


def series_of(row: TruthRow) -> tuple[str, ...]:
    """What rows of one curve share."""
    return tuple(row.columns.get(name, "").strip() for name in SERIES)


def run_of(row: TruthRow) -> tuple[str, ...]:
    """What rows of one run share: the part of the id before the last dot, and the question."""
    return (row.id.rpartition(".")[0] or row.id, *series_of(row), row.columns.get("concurrency", ""))


def rows_about(
    rows: Iterable[TruthRow], names: Collection[str], shape: ModelShape, cards: Sequence[GpuSpec]
) -> list[tuple[TruthRow, ModelShape, GpuSpec]]:
    """Rows of a model by one of its `names` on one of `cards`; either may be unknown to the catalogue."""
    found = []
    for row in rows:
        card = next((card for card in cards if names_card(row.gpu, card)), None)
        if row.model in names and card is not None:
            found.append((row, shape, card))
    return found


@dataclass(frozen=True)
class Point:
    """One measured point of a closed loop: every metric of one run."""

    request: PredictRequest
    tpot_ms: float | None = None
    ttft_ms: float | None = None
    output_tok_s: float | None = None
    series: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()


def points_of(rows: Sequence[tuple[TruthRow, ModelShape, GpuSpec]]) -> list[Point]:
    """Rows of one run (same part of the id before the last dot) put together; rows that are not scored are left out."""
    found: dict[tuple[str, ...], Point] = {}
    for row, shape, gpu in rows:
        if row.excluded or row.metric not in CLOSED_LOOP or row.value is None:
            continue
        if row.value <= 0:
            raise TruthError(f"row {row.id}: {row.metric} is {row.value:g}; a measured time or rate is above 0")
        key = run_of(row)
        point = found.get(key) or Point(request_of(row, shape, gpu), series=series_of(row))
        found[key] = _with(point, row.metric, row.value, row.id)
    return list(found.values())


def _with(point: Point, metric: str, value: float, name: str) -> Point:
    ids = (*point.ids, name)
    if metric == "tpot_ms":
        return replace(point, tpot_ms=value, ids=ids)
    if metric == "ttft_ms":
        return replace(point, ttft_ms=value, ids=ids)
    return replace(point, output_tok_s=value, ids=ids)


def sample_of(point: Point, rates: Coefficients | None = PRIOR) -> Sample:
    """The point as the fit takes it, starting from `rates` (None: those the request would be answered with)."""
    request = point.request
    slots = slots_of(request)
    model = model_of(replace(request, coefficients=rates), slots)
    return Sample(model, load_of(request, slots), point.tpot_ms, point.ttft_ms, tags(request.engine, request.gpu))
