"""A closed-loop sweep of the engine model becomes bench points, and the planner calibrated by two or three of them
predicts the others."""

import csv
import io
from random import Random

import pytest

from tonnage_core.benchmarking.lengths import parse_lengths
from tonnage_core.benchmarking.workload import Mix, RequestClass
from tonnage_core.engine.closed_loop import closed_loop
from tonnage_core.engine.defaults import engine_config_for
from tonnage_core.engine.step_time import step_time_for
from tonnage_core.hardware import find_gpu
from tonnage_core.memory.truth import truth_row
from tonnage_core.prediction.calibrate import calibrate, chosen, predict_calibrated
from tonnage_core.prediction.truth import Point, points_of
from tonnage_core.traces import TraceRequest
from tonnage_loadgen.bench_points import Deployment, point_run, points_csv
from tonnage_loadgen.bench_run import document
from tonnage_loadgen.bench_spec import BenchSpec
from tonnage_loadgen.shard import Endpoint, ShardResult
from tonnage_loadgen.verdict import ClientVerdict
from tonnage_runtime.catalogue import load_model

MODEL, GPU = "meta-llama/Llama-3.1-8B", "L40S"
UNDISTURBED = ClientVerdict(0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, False, None)


@pytest.fixture(scope="module")
def points() -> list[Point]:
    shape, gpu = load_model(MODEL), find_gpu(GPU)
    lengths = (parse_lengths("constant:700"), parse_lengths("constant:120"))
    runs = []
    for users in (1, 2, 4, 8, 16, 32):
        mix = Mix((RequestClass("all", 1.0, *lengths),))
        spec = BenchSpec(Endpoint("http://none", MODEL), mix, users=users, requests=6 * users, seed=users)
        shard = spec.shard()
        requests = [each.request for each in shard.planned]
        records = closed_loop(engine_config_for(shape, gpu), step_time_for(shape, gpu), requests, users)
        found = document(shard, [ShardResult(records, UNDISTURBED, 0, 0, 0.0, ())], spec.judging())
        runs.append(point_run(f"sweep.c{users}", spec, found, users))
    text = points_csv(runs, Deployment(MODEL, "", "vllm", "0.32.0", GPU))
    return points_of([(truth_row(row), shape, gpu) for row in csv.DictReader(io.StringIO(text))])


@pytest.mark.parametrize(("count", "tpot", "ttft"), [(2, 0.08, 0.20), (3, 0.045, 0.20)])
def test_points_that_did_not_calibrate_are_predicted(points: list[Point], count: int, tpot: float, ttft: float) -> None:
    used = chosen(points, count)
    calibration = calibrate(used)
    held = [point for point in points if point not in used]
    assert len(held) == 6 - count
    errors: dict[str, list[float]] = {"tpot": [], "ttft": []}
    for point in held:
        found = predict_calibrated(point.request, calibration)
        assert point.tpot_ms
        assert point.ttft_ms
        errors["tpot"].append(abs(found.tpot_ms.value / point.tpot_ms - 1))
        errors["ttft"].append(abs(found.ttft_ms.value / point.ttft_ms - 1))
    assert sum(errors["tpot"]) / len(held) <= tpot
    assert sum(errors["ttft"]) / len(held) <= ttft


def test_a_closed_loop_keeps_its_users_busy_and_answers_every_request() -> None:
    shape, gpu = load_model(MODEL), find_gpu(GPU)
    rng = Random(3)
    requests = [TraceRequest(n, 0.0, rng.randint(20, 900), rng.randint(1, 60), (n, n + 100), 512) for n in range(40)]
    records = closed_loop(engine_config_for(shape, gpu), step_time_for(shape, gpu), requests, 4)
    assert [r.index for r in records] == list(range(40))
    assert all(r.first_s is not None and r.last_s is not None and r.last_s >= r.first_s > r.intended_s for r in records)
    spans = [(r.intended_s, r.last_s or 0.0) for r in records]
    for at, _ in spans:
        assert sum(start <= at < end for start, end in spans) <= 4
    # A user that got its answer sends at once: no request but the first four waits for a later instant.
    assert all(any(r.intended_s == end for _, end in spans) for r in records[4:])
