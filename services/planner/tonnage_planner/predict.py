"""`POST /v1/predict`: TTFT, TPOT and throughput, answered by the same function as `tonnage predict`."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tonnage_core.errors import BadInputError
from tonnage_core.kv_cache.versions import parse_engine
from tonnage_core.parallelism import Layout
from tonnage_core.prediction import PredictRequest, predict
from tonnage_core.prediction.calibrate import MOST_POINTS, calibrate, predict_calibrated
from tonnage_core.prediction.truth import Point
from tonnage_planner.documents import VERSION, Document
from tonnage_planner.memory import named_gpu, named_shape


class MeasuredPoint(Document):
    """Means of one closed-loop run of the same model, engine, GPUs and layout."""

    isl: float
    """Prompt tokens."""
    osl: float
    """Output tokens."""
    concurrency: int
    """Requests in flight."""
    ttft_ms: float | None = Field(default=None, gt=0, le=1e9)
    """Mean time to first token."""
    tpot_ms: float | None = Field(default=None, gt=0, le=1e9)
    """Mean time per output token after the first."""


class PredictQuestion(Document):
    """A model on GPUs under a closed-loop client; a flag left out takes the engine's default for its version."""

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
    isl: float
    """Prompt tokens, mean."""
    osl: float
    """Output tokens, mean."""
    prefix: float = 0
    """Prompt tokens that are cached already."""
    concurrency: int
    """Requests in flight over all GPUs."""
    precision: str = Field(default="auto", max_length=32)
    """Weights of a plain checkpoint: auto or a format."""
    kv_dtype: str = Field(default="auto", max_length=32)
    """KV cache: auto or a format."""
    max_num_seqs: int | None = None
    """Most sequences in a batch."""
    max_num_batched_tokens: int | None = None
    """Most tokens in a step."""
    gpu_memory_utilization: float | None = None
    """Share of the GPU's memory the engine may take."""
    pool_gib: float | None = None
    """KV pool in GiB as the engine logged it, instead of the computed one."""
    enforce_eager: bool = False
    """Without CUDA graphs."""
    length_spread: float = 0.2
    """Width of the range of output lengths over its mean; 0: all alike."""
    waves: float = 10
    """Requests that each client sends one after another."""
    hold_steps: float = 0
    """Decode steps that a busy engine lets a new prompt wait: half of SGLang's scheduler-recv-interval."""
    points: list[MeasuredPoint] = Field(default=[], max_length=MOST_POINTS)
    """Measured points to refit the physical coefficients with."""


class EstimateDocument(BaseModel):
    """A value and the interval that holds the truth nine times in ten."""

    value: float
    lo90: float
    hi90: float


class PredictAnswer(BaseModel):
    """Means of the closed loop, their class and the derivation."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True, populate_by_name=True)

    schema_: str = Field(alias="schema")
    """tonnage.predict/1"""
    version: str
    """Version of Tonnage."""
    ttft_ms: EstimateDocument
    """Time to first token."""
    tpot_ms: EstimateDocument
    """Time per output token after the first."""
    output_tok_s: EstimateDocument
    """Output tokens a second of all GPUs."""
    class_: str = Field(alias="class")
    """measured, calibrated, derived or extrapolated."""
    fits: bool
    """Whether the KV pool holds one such request."""
    binding: str
    """What limits the requests that run at once: client, max_num_seqs or kv_cache."""
    running: float
    """Requests that run at once."""
    steps: list[dict[str, Any]]
    """Name, formula, value and unit of each step."""


_OWN = {"model", "config", "gpu", "gpu_profile", "engine", "tp", "pp", "ep", "dp", "points"}


def request_of(question: PredictQuestion) -> PredictRequest:
    """The question as the model takes it; raises `BadInputError` for what no engine takes."""
    engine, version = parse_engine(question.engine)
    gpu = named_gpu(question.gpu, question.gpu_profile)
    if gpu is None:
        raise BadInputError("a prediction needs a card: give gpu or gpu_profile")
    return PredictRequest(
        shape=named_shape(question.model, question.config),
        gpu=gpu,
        engine=engine,
        engine_version=version,
        layout=Layout(question.tp, question.pp, question.ep, question.dp),
        **question.model_dump(exclude=_OWN),
    )


def predict_answer(question: PredictQuestion) -> dict[str, Any]:
    """The `tonnage.predict/1` document; raises `BadInputError` for what no engine takes."""
    request = request_of(question)
    if not question.points:
        return predict(request).document(VERSION)
    calibration = calibrate([_point(request, point) for point in question.points])
    return predict_calibrated(request, calibration).document(VERSION)


def _point(request: PredictRequest, point: MeasuredPoint) -> Point:
    asked = request.at(point.isl, point.osl, point.concurrency)
    return Point(asked, tpot_ms=point.tpot_ms, ttft_ms=point.ttft_ms)
