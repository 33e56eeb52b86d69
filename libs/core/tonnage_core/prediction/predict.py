"""`predict`: TTFT, TPOT and throughput of a model on a replica at a concurrency, with intervals and the derivation."""

from dataclasses import dataclass
from typing import Any

from tonnage_core.memory.steps import Derivation, Step
from tonnage_core.prediction.closed_loop import Load, SteadyState, steady_state
from tonnage_core.prediction.intervals import Estimate, Widths, widths
from tonnage_core.prediction.request import PredictRequest
from tonnage_core.prediction.slots import Slots, slots_of
from tonnage_core.prediction.step_model import StepModel, step_model

SCHEMA = "tonnage.predict/1"


@dataclass(frozen=True)
class Prediction:
    """The answer; times in ms, rates of the whole replica. `kind`: measured, calibrated, derived or extrapolated."""

    request: PredictRequest
    ttft_ms: Estimate
    tpot_ms: Estimate
    output_tok_s: Estimate
    kind: str
    steps: tuple[Step, ...]
    notes: tuple[str, ...]
    slots: Slots
    state: SteadyState

    def document(self, version: str = "") -> dict[str, Any]:
        """The `tonnage.predict/1` document."""
        request = self.request
        return {
            "schema": SCHEMA,
            "version": version,
            "model": request.shape.name,
            "gpu": request.gpu.name,
            "engine": f"{request.engine}:{request.engine_version}".rstrip(":"),
            "gpus": request.layout.gpus,
            "ttft_ms": self.ttft_ms.document(),
            "tpot_ms": self.tpot_ms.document(),
            "output_tok_s": self.output_tok_s.document(),
            "class": self.kind,
            "fits": self.slots.fits,
            "binding": self.slots.binding,
            "running": round(self.slots.running, 2),
            "notes": list(self.notes),
            "steps": [step.document() for step in self.steps],
        }


def predict(request: PredictRequest, *, sure: Widths | None = None) -> Prediction:
    """Closed-loop means of the request. Raises `BadInputError` for sizes, formats or layouts that cannot be.

    `sure` replaces the widths of the intervals and the class, for an answer whose coefficients were calibrated.
    """
    slots = slots_of(request)
    model, load = model_of(request, slots), load_of(request, slots)
    state = steady_state(model, load)
    sure = sure or widths(request, slots)
    return Prediction(
        request,
        sure.estimate(state.ttft_s * 1e3, first=True),
        sure.estimate(state.tpot_s * 1e3),
        sure.estimate(state.requests_per_s * request.osl),
        sure.kind,
        _steps(model, load, state),
        slots.notes,
        slots,
        state,
    )


def model_of(request: PredictRequest, slots: Slots) -> StepModel:
    """The step model that answers a request."""
    return step_model(
        request.shape,
        request.gpu,
        layout=request.layout,
        engine=request.engine,
        engine_version=request.engine_version,
        kv_dtype=request.kv_dtype,
        precision=request.precision,
        max_num_batched_tokens=slots.chunk,
        coefficients=request.coefficients,
    )


def load_of(request: PredictRequest, slots: Slots) -> Load:
    """The closed loop of a request."""
    return Load(
        request.isl,
        request.osl,
        request.prefix,
        request.concurrency,
        slots.running,
        request.waves,
        request.length_spread,
        request.hold_steps,
    )


def _steps(model: StepModel, load: Load, state: SteadyState) -> tuple[Step, ...]:
    log = Derivation()

    def milliseconds(name: str, formula: str, seconds: float) -> None:
        log.count(name, formula, round(seconds * 1e3, 4), "ms")

    log.count(
        "running",
        f"{load.clients:g} clients, {load.slots:g} slots",
        round(min(load.clients, load.slots), 2),
        "requests",
    )
    log.count("decoding", "rows of a decode step", round(state.decoding, 2), "rows")
    milliseconds(
        "decode_step", f"{state.decoding:.1f} rows at {load.isl + load.osl / 2:,.0f} tokens", state.decode_step_s
    )
    for name, seconds in model.parts(state.decoding, state.decoding * load.context, 0, 0).items():
        if seconds:
            milliseconds(f"decode_{name}", "part of the decode step", seconds)
    milliseconds("prompt", f"{load.isl - load.prefix:,.0f} new tokens beside the decodes", state.prompt_s)
    log.count("prompt_share", "requests a second x seconds a prompt adds", round(state.prompt_share, 4), "share")
    milliseconds("tpot", "decode step / (1 - prompt share)", state.tpot_s)
    milliseconds("wait", "steps under way, prompts held back and other prompts", state.wait_s)
    milliseconds("burst", "share of requests in the first burst x half of its prompts", state.burst_s)
    milliseconds("queue", "requests beyond the slots / requests a second", state.queue_s)
    milliseconds("ttft", "overhead + prompt + wait + burst + queue", state.ttft_s)
    return tuple(log.steps)
