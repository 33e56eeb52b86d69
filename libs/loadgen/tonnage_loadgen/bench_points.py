"""Bench points: closed-loop runs as rows of CSV, with the columns that `predict --calibrate` and the planner read.

An open loop has no fixed number of clients, so it is no point of a closed-loop model. Values are means of requests that
ended well, times engine milliseconds.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tonnage_loadgen.bench_spec import BenchSpec

COLUMNS = (
    "id",
    "source",
    "model",
    "config",
    "engine",
    "engine_version",
    "gpu",
    "gpu_mem_gib",
    "precision",
    "kv_dtype",
    "tp",
    "pp",
    "ep",
    "dp",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "gpu_memory_utilization",
    "enforce_eager",
    "isl",
    "osl",
    "prefix_len",
    "concurrency",
    "pool_gib",
    "metric",
    "value",
    "expect",
    "notes",
)


FILLED = 0.9
"""Mean users with a request under way, as a share of all, from which a run's tokens/s are those of its users."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What was measured, as the columns have it; empty is unknown."""

    model: str = ""
    config: str = ""
    engine: str = ""
    engine_version: str = ""
    gpu: str = ""
    precision: str = ""
    kv_dtype: str = ""
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1


@dataclass(frozen=True, slots=True)
class PointRun:
    """One run for the file: its document, mean lengths in tokens, users."""

    name: str
    document: dict[str, Any]
    isl: float
    osl: float
    users: int
    prefix: float = 0.0
    """Mean prompt tokens that the engine says its cache served."""


def point_run(name: str, spec: BenchSpec, document: dict[str, Any], users: int) -> PointRun:
    """A closed-loop run of `spec` for the file: mean lengths are those the server counted, else those planned."""
    busy = document.get("all_busy")
    if busy is not None and busy["output_tokens"] is not None:
        return PointRun(name, document, busy["prompt_tokens"], busy["output_tokens"], users, busy["cached_tokens"])
    ok = document["requests"]["ok"]
    if ok and document["output_tokens"] is not None and not document.get("uncounted_answers"):
        prompt, cached = document["prefix"]["prompt_tokens"], document["prefix"]["hit_tokens"] or 0
        return PointRun(name, document, prompt / ok, document["output_tokens"] / ok, users, cached / ok)
    planned = [each.request for each in spec.shard().planned]
    isl = sum(each.input_length for each in planned) / len(planned)
    osl = sum(each.output_length for each in planned) / len(planned)
    return PointRun(name, document, isl, osl, users)


def points_csv(runs: Sequence[PointRun], deployment: Deployment) -> str:
    """Header and rows: TTFT, TPOT and output tokens/s of each run that is not void and has them.

    The times are of requests that ran while all users were busy (`all_busy`), where there are any. Tokens/s are left
    out where less than 0.9 of the users had a request under way in the mean; so are times of 0, of answers whose tokens
    all came in one event.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for run in runs:
        if run.document["client"]["bound"]:
            continue
        for metric, value in _metrics(run.document, run.users):
            if value:
                writer.writerow(_row(run, deployment, metric, value))
    return text.getvalue()


def _metrics(document: dict[str, Any], users: int) -> list[tuple[str, float | None]]:
    tokens = None if document.get("uncounted_answers") or not _filled(document, users) else document["output_tokens"]
    seconds = document["duration_s"]
    busy = document.get("all_busy") or {name: document[name]["mean"] for name in ("ttft_ms", "tpot_ms")}
    return [
        ("ttft_ms", busy["ttft_ms"]),
        ("tpot_ms", busy["tpot_ms"]),
        ("output_tok_s", round(tokens / seconds, 4) if tokens and seconds else None),
    ]


def _filled(document: dict[str, Any], users: int) -> bool:
    """Whether the users were busy nearly throughout: a short run is mostly its start and its end."""
    mean = document["concurrency"]["mean"]
    return mean is not None and mean >= FILLED * users


def _row(run: PointRun, deployment: Deployment, metric: str, value: float) -> dict[str, Any]:
    asked = {
        "isl": f"{run.isl:g}",
        "osl": f"{run.osl:g}",
        "prefix_len": f"{run.prefix:g}",
        "concurrency": run.users,
    }
    columns = {name: getattr(deployment, name) for name in deployment.__dataclass_fields__}
    return {
        "id": f"{run.name}.{metric}",
        "source": "tonnage bench",
        **columns,
        **asked,
        "metric": metric,
        "value": f"{value:g}",
        "notes": "closed loop",
    }
