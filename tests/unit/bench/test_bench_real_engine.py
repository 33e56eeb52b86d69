"""The second opinion on capacities: its client tells a mock's true times, and its crossing ignores a lucky rate."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tonnage_loadgen.paced_mock import Pace, PacedMock

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks" / "bench"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("real_engine", FOLDER / "real_engine.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("engine_cores", "plain_client", "tonnage_command"):
        sys.modules.pop(name, None)
    return module


def row(rate: float, load: float) -> dict[str, float]:
    return {"rate_rps": rate, "load": load}


def test_the_load_cannot_fall_as_the_rate_rises(benchmark: ModuleType) -> None:
    straight = [row(4, 0.5), row(5, 0.8), row(6.25, 1.25), row(8, 2)]
    assert benchmark.crossing(straight) == pytest.approx((5 * 6.25) ** 0.5)
    lucky = [row(4, 0.5), row(5, 2.0), row(6, 0.5), row(7, 3.0)]
    assert 4 < benchmark.crossing(lucky) < 7
    assert benchmark.crossing([row(4, 0.2), row(5, 0.4)]) is None
    assert benchmark.crossing([row(4, 1.2), row(5, 1.4)]) is None


def test_each_figure_is_the_middle_of_its_repeats(benchmark: ModuleType) -> None:
    def swept(value: float, *users: int) -> list[dict[str, str]]:
        sizes = {"isl": "10", "osl": "5", "gpu": "x"}
        return [{"id": f"c{n}", "concurrency": str(n), "value": str(value * n), **sizes} for n in users]

    sweeps = [swept(3, 8, 1), swept(90, 1, 8), swept(4, 8, 1), swept(5, 1, 8)]
    found = benchmark.middle(sweeps)
    assert [(row["concurrency"], row["value"]) for row in found] == [("1", "4.5"), ("8", "36")]
    assert found[0]["isl"] == "10"
    assert benchmark.middle_half([7.0]) == 7.0
    assert benchmark.middle_half([1.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 900.0]) == 5.5


def test_an_engine_and_its_clients_keep_to_cores_of_their_own(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_cores = importlib.import_module("engine_cores")
    names = {1: "vllm serve", 2: "VLLM::EngineCore", 3: "VLLM::Worker"}
    cores = {0: {0, 1}, 1: {0, 1}, 2: {0, 1}, 3: {0}}
    monkeypatch.setattr(engine_cores, "_tree", lambda process: list(names))
    monkeypatch.setattr(engine_cores, "_title", names.__getitem__)
    monkeypatch.setattr(engine_cores, "_cores", cores.__getitem__)
    monkeypatch.setattr(engine_cores, "_bind", cores.__setitem__)
    monkeypatch.setattr("os.sched_getaffinity", cores.__getitem__)
    monkeypatch.setattr("os.sched_setaffinity", cores.__setitem__)
    assert engine_cores.settle(1) == {"vllm 1": [1], "VLLM::EngineCore 2": [0], "VLLM::Worker 3": [0]}
    assert cores[0] == {1}
    cores.update({0: {0}, 3: {0}})
    with pytest.raises(SystemExit, match="no VLLM::Worker that is bound"):
        engine_cores.settle(1)


def test_processes_are_read_and_bound_as_the_kernel_has_them(benchmark: ModuleType) -> None:
    engine_cores, first = importlib.import_module("engine_cores"), min(os.sched_getaffinity(0))
    script = ["bash", "-c", "sleep 99 & echo $!; wait"]
    with subprocess.Popen(script, stdout=subprocess.PIPE, start_new_session=True) as engine:
        try:
            assert engine.stdout is not None
            child = int(engine.stdout.readline())
            assert engine_cores._tree(engine.pid) == [engine.pid, child]
            engine_cores._bind(child, {first})
            assert engine_cores._cores(child) == {first}
            assert "sleep 99" in engine_cores._title(engine.pid)
            with pytest.raises(SystemExit, match="no VLLM::Worker that is bound"):
                engine_cores.settle(engine.pid)
        finally:
            os.killpg(engine.pid, signal.SIGKILL)
    with pytest.raises(SystemExit, match="is not there"):
        engine_cores.settle(engine.pid)


def test_a_round_whose_points_are_refused_is_kept_and_does_not_hold(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*arguments: str) -> None:
        raise SystemExit("the points do not fit")

    monkeypatch.setattr(benchmark, "command", refuse)
    rows = [
        {"id": f"c{n}.{metric}", "concurrency": str(n), "metric": metric, "value": "5", "isl": "9", "osl": "9"}
        for n in (1, 2, 4, 8)
        for metric in ("tpot_ms", "ttft_ms")
    ]
    found = {f"{count}_points": benchmark.judged(rows, count, tmp_path, tmp_path / "card.json") for count in (2, 3)}
    assert "the points do not fit" in found["2_points"]["refused"]
    verdict = benchmark.verdict({"capacity": [], "planner": [found]})
    assert verdict["tpot_2_points_holds"] is False
    assert verdict["tpot_3_points"] == [None]


@pytest.mark.parametrize(("bench", "tpot", "runs", "holds"), [(17.0, 0.04, 6, True), (21.0, 0.05, 12, False)])
def test_the_verdict_is_of_the_rounds_and_their_limits(
    benchmark: ModuleType, bench: float, tpot: float, runs: int, holds: bool
) -> None:
    def calibrated(error: float) -> dict[str, dict[str, float]]:
        return {"mean": {"tpot_error": error, "ttft_error": 5 * error}}

    searched = {"passes_rps": 0.96 * bench, "fails_rps": bench / 0.96, "runs": runs}
    rounds = [{"2_points": calibrated(2 * each), "3_points": calibrated(each)} for each in (0.8 * tpot, 1.2 * tpot)]
    found = benchmark.verdict({"capacity": [{"bench": searched, "ladder_rps": 17.5}], "planner": rounds})
    for name in ("capacity_holds", "runs_hold", "tpot_2_points_holds", "tpot_3_points_holds"):
        assert found[name] is holds, name
    assert found["ttft_2_points_holds"] is False


async def test_the_plain_client_tells_what_the_server_did(benchmark: ModuleType) -> None:
    server = await PacedMock(Pace(tokens=5, first_s=0.2, gap_s=0.05)).serve()
    async with server:
        port = server.sockets[0].getsockname()[1]
        seen = await benchmark.open_loop(f"http://127.0.0.1:{port}", 20.0, 0.5, (8, 5), 1)
    assert len(seen) > 2
    assert all(each.ttft_s >= 0.2 for each in seen)
    assert all(each.tpot_s > 0 for each in seen)
    assert benchmark.nearest_rank([3.0, 1.0, 2.0], 90) == 3.0
