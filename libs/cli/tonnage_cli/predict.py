"""`tonnage predict`: TTFT, TPOT and throughput of a model on GPUs at a concurrency, with intervals and provenance."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from tonnage_cli.accuracy import read_cases
from tonnage_cli.output import json_option, print_json, print_table
from tonnage_core.errors import BadInputError
from tonnage_core.hardware.catalogue import names_card
from tonnage_core.kv_cache import parse_engine
from tonnage_core.memory.accuracy import Case
from tonnage_core.parallelism import Layout
from tonnage_core.prediction import Prediction, PredictRequest, predict
from tonnage_core.prediction.calibrate import calibrate, predict_calibrated
from tonnage_core.prediction.coefficients import engine_key
from tonnage_core.prediction.profile_fit import check_profile, measured_steps, profile_model
from tonnage_core.prediction.step_model import step_model
from tonnage_core.prediction.truth import points_of
from tonnage_runtime.catalogue import load_gpu, load_model, load_profile

PROBED = "meta-llama/Llama-3.1-8B"
"""The model that the agent's decode-step and prefill-chunk probes have the shape of."""
_TIMES = (("ttft_ms", "TTFT ms"), ("tpot_ms", "TPOT ms"), ("output_tok_s", "output tokens/s"))


@click.command()
@click.option("--model", required=True, help="Catalogue name, directory with a config.json, or the file itself.")
@click.option("--gpu", required=True, help="GPU name or alias, or the path of a GpuProfile.")
@click.option("--engine", default="vllm", show_default=True, help="Engine and version, such as vllm:0.19.0.")
@click.option("--precision", default="auto", show_default=True, help="Weights of a plain checkpoint: auto or a format.")
@click.option("--kv-dtype", default="auto", show_default=True, help="Cache elements: auto, bf16, fp8, …")
@click.option("--tp", type=int, default=1, show_default=True, help="Tensor-parallel size of attention.")
@click.option("--pp", type=int, default=1, show_default=True, help="Pipeline stages.")
@click.option("--ep", type=int, default=1, show_default=True, help="Ranks that experts are spread over.")
@click.option("--dp", type=int, default=1, show_default=True, help="Data-parallel size of attention.")
@click.option("--isl", type=float, required=True, help="Prompt tokens, mean.")
@click.option("--osl", type=float, required=True, help="Output tokens, mean.")
@click.option("--prefix", type=float, default=0, show_default=True, help="Prompt tokens that are cached already.")
@click.option("--concurrency", type=int, required=True, help="Requests in flight over all GPUs.")
@click.option("--length-spread", type=float, default=0.2, show_default=True, help="Range of output lengths / mean.")
@click.option("--waves", type=float, default=10, show_default=True, help="Requests that each client sends in turn.")
@click.option("--hold-steps", type=float, default=0, show_default=True, help="Steps that a new prompt is held back.")
@click.option("--max-num-seqs", type=int, help="Sequences at once; by default the engine's.")
@click.option("--max-num-batched-tokens", type=int, help="Tokens of one step; by default the engine's.")
@click.option("--gpu-memory-utilization", type=float, help="Memory fraction, with the engine's meaning of it.")
@click.option("--pool-gib", type=float, help="KV pool of each GPU, as the engine logged it.")
@click.option("--enforce-eager", is_flag=True, help="No CUDA graphs.")
@click.option("--calibrate", "points_file", type=click.Path(path_type=Path), help="CSV of points measured on it.")
@json_option
def command(
    model: str,
    gpu: str,
    engine: str,
    tp: int,
    pp: int,
    ep: int,
    dp: int,
    points_file: Path | None,
    as_json: bool,
    **flags: Any,
) -> int:
    """Closed-loop means with 90 % intervals, their class and the derivation.

    Exits with 1 when not even one such request fits into memory.
    """
    name, release = parse_engine(engine)
    request = PredictRequest(
        shape=load_model(model),
        gpu=load_gpu(gpu),
        layout=Layout(tp, pp, ep, dp),
        engine=name,
        engine_version=release,
        **flags,
    )
    found = predict(request) if points_file is None else _calibrated(request, model, points_file)
    card = _card(gpu, found)
    if as_json:
        print_json(found.document(version("tonnage")) | ({"card": card} if card else {}))
    else:
        _print(found)
        if card:
            _print_card(card)
    return 1 if found.slots.fits is False else 0


def _card(gpu: str, found: Prediction) -> dict[str, Any] | None:
    """What a GpuProfile's own steps say: the decode step's kernels alone, without an engine's host code, and how well
    half of the measured steps predict the rest. None where the profile measured no steps."""
    profile = load_profile(gpu)
    if profile is None or not measured_steps(profile):
        return None
    probed = load_model(PROBED)
    request, state = found.request, found.state
    model = step_model(
        request.shape,
        request.gpu,
        layout=request.layout,
        kv_dtype=request.kv_dtype,
        precision=request.precision,
        coefficients=profile_model(profile, probed).coefficients,
    )
    seconds = model.decode_step_s(state.decoding, request.isl + request.osl / 2)
    return {"kernels_decode_step_ms": round(seconds * 1e3, 4), "held_out": check_profile(profile, probed).document()}


def _print_card(card: dict[str, Any]) -> None:
    click.echo(f"this card's kernels alone: {card['kernels_decode_step_ms']:.4g} ms a decode step")
    for kind, errors in card["held_out"].items():
        text = f"{kind} steps the agent measured: half predict the rest within {errors['median_pct']:.2g} % (median)"
        click.echo(f"{text}, {errors['max_pct']:.2g} % at most, {errors['n']} steps")


def _calibrated(request: PredictRequest, model: str, file: Path) -> Prediction:
    """The answer with coefficients refitted to the file's rows of the same engine and card."""
    cases = [_with_model(case, request, model) for case in read_cases(file, None)]
    rows = [
        (case.row, case.shape, request.gpu)
        for case in cases
        if case.shape is not None
        and names_card(case.row.gpu, request.gpu)
        and engine_key(case.row.columns.get("engine", "") or "vllm") == engine_key(request.engine)
    ]
    points = points_of(rows)
    if not points:
        what = f"{request.engine} on {request.gpu.name}"
        raise BadInputError(
            f"{file} has no ttft_ms or tpot_ms row of {what} with a known model; measure one such point"
        )
    return predict_calibrated(request, calibrate(points))


def _with_model(case: Case, request: PredictRequest, model: str) -> Case:
    """A row about the asked model by its name may leave the config out."""
    named = case.row.model in (model, request.shape.name) or not (case.row.model or case.row.config)
    return Case(case.row, request.shape, case.gpu) if case.shape is None and named else case


def _print(found: Prediction) -> None:
    document = found.document()
    title = f"{document['model']} on {document['gpus']} x {document['gpu']}, {document['engine']} ({document['class']})"
    rows = [(label, *(f"{document[key][part]:,.4g}" for part in ("value", "lo90", "hi90"))) for key, label in _TIMES]
    print_table(title, ("", "value", "90 % from", "to"), rows)
    steps = [(step["name"], step["formula"], f"{step['value']:,.5g}", step["unit"]) for step in document["steps"]]
    print_table("Derivation", ("step", "formula", "value", "unit"), steps)
    for note in document["notes"]:
        click.echo(f"note: {note}")
    if found.slots.fits is False:
        click.echo("does not fit: the KV pool holds no request of this length; use more GPUs or a smaller model")
