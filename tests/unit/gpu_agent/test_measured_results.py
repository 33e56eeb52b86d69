"""The committed H200 figures: two full runs against figures that other code took on such a GPU, and each other."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3] / "benchmarks"
REFERENCE = json.loads((ROOT / "gpu_agent" / "h200_reference.json").read_text())
GIB = 1 << 30


def result(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / "results" / f"2026-11-30-h200-probe-{name}.json").read_text())
    return document


def gpu(name: str) -> dict[str, Any]:
    profile: dict[str, Any] = result(name)["gpus"][0]
    return profile


RUNS = ("full-run1", "full-run2")


def points(name: str, probe: str) -> list[dict[str, Any]]:
    return [p for p in gpu(name)["probes"] if p["name"] == probe and p["status"] == "ok"]


def value(name: str, probe: str, **params: Any) -> float:
    found = [p for p in points(name, probe) if all(p["params"].get(k) == v for k, v in params.items())]
    return float(found[0]["value"])


@pytest.mark.parametrize("run", RUNS)
def test_every_point_is_right_and_the_gpu_is_ok(run: str) -> None:
    assert {p["status"] for p in gpu(run)["probes"]} <= {"ok", "unsupported"}
    assert gpu(run)["verdict"]["status"] == "OK"


@pytest.mark.parametrize("run", RUNS)
def test_memory_and_pinned_copies_reach_the_reference(run: str) -> None:
    reference = REFERENCE["hbm_copy_gbps"][str(4 * GIB)]
    assert value(run, "hbm_copy", buffer_bytes=4 * GIB) >= 0.97 * reference
    assert value(run, "hbm_read", buffer_bytes=4 * GIB) >= 0.97 * REFERENCE["hbm_read_gbps"][str(4 * GIB)]
    for way in ("h2d_pinned", "d2h_pinned"):
        assert value(run, way, bytes=GIB) >= 0.97 * REFERENCE[f"{way}_gbps"]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("precision", ["bf16", "fp8", "int8"])
def test_matrix_products_reach_the_reference(run: str, precision: str) -> None:
    measured = {p["params"]["batch"]: p["params"]["us"] for p in points(run, f"gemm_{precision}")}
    for batch, us in REFERENCE[f"gemm_{precision}_us"].items():
        least = 0.95 if int(batch) <= 256 else 0.90
        assert us / measured[int(batch)] >= least, (batch, measured[int(batch)])


@pytest.mark.parametrize("run", RUNS)
def test_the_fused_kernel_is_as_quick_as_a_copy(run: str) -> None:
    assert value(run, "fusion_triton") >= 0.97 * value(run, "fusion_copy")


@pytest.mark.parametrize("run", RUNS)
def test_decode_attention_reads_at_memory_speed(run: str) -> None:
    hbm = gpu(run)["ceilings"]["hbm_copy_gbps"]
    for point in points(run, "decode_attention"):
        least = 0.85 if point["bytes"] >= GIB else 0.6 if point["bytes"] >= GIB // 8 else 0.0
        assert point["value"] >= least * hbm, point["params"]


@pytest.mark.parametrize("run", RUNS)
def test_adapters_cost_at_most_a_quarter(run: str) -> None:
    (point,) = [p for p in points(run, "lora_gemm") if (p["params"]["batch"], p["params"]["rank"],
                p["params"]["adapters"]) == (64, 16, 8)]  # fmt: skip
    assert point["params"]["width"] == 8192
    assert point["params"]["overhead"] <= 0.25


def test_two_runs_agree_on_their_ceilings() -> None:
    one, two = (gpu(run)["ceilings"] for run in RUNS)
    for key in ("hbm_copy_gbps", "hbm_read_gbps", "hbm_write_gbps", "hbm_triad_gbps", "h2d_pinned_gbps",
                "d2h_pinned_gbps"):  # fmt: skip
        assert one[key] == pytest.approx(two[key], rel=0.02), key
    for key in ("bf16_tflops", "fp16_tflops", "fp8_tflops", "int8_tops"):
        assert one[key] == pytest.approx(two[key], rel=0.05), key


def test_the_suites_are_quick_enough() -> None:
    assert all(gpu(run)["suite_s"] < 120 for run in RUNS)
    assert gpu("quick-warm")["suite_s"] < 25
    assert gpu("quick-cold")["suite_s"] < 25


@pytest.mark.parametrize("run", RUNS)
def test_launch_overhead_is_reported(run: str) -> None:
    ceilings = gpu(run)["ceilings"]
    assert ceilings["graph_kernel_us"] < ceilings["kernel_launch_us"]


@pytest.mark.parametrize("run", RUNS)
def test_the_step_curves_cover_batch_and_context(run: str) -> None:
    curve = gpu(run)["curves"]["decode_step"]
    assert {p["batch"] for p in curve} == {1, 2, 4, 8, 16, 32, 64, 128, 256}
    assert {p["context"] for p in curve} == {1024, 4096, 16384, 32768}
    assert len(gpu(run)["curves"]["prefill_chunk"]) == 9


def test_a_second_process_stopped_the_suite_within_two_seconds() -> None:
    document = json.loads((ROOT / "results" / "2026-11-30-h200-probe-intrusion.json").read_text())
    for pids in ("visible", "hidden"):
        assert document[pids]["outcome"] == "busy"
        assert document[pids]["verdict"] == "UNKNOWN"
        assert document[pids]["stopped_after_first_cuda_call_s"] < 2.0


def test_collectives_and_the_tensor_parallel_step_over_two_gpus_were_right() -> None:
    document = json.loads((ROOT / "results" / "2026-11-30-h200-two-gpus.json").read_text())
    probes = document["gpus"][1]["probes"]
    names = {"allreduce", "allgather", "reducescatter", "alltoall", "sendrecv", "allreduce_one_shot", "p2p_copy"}
    assert {p["name"] for p in probes} == {*names, "p2p_sweep", "tensor_parallel_step"}
    assert {p["status"] for p in probes} == {"ok"}
    sizes = {p["params"]["bytes"] for p in probes if p["name"] == "allreduce"}
    assert {1024, 512 << 10, 1 << 30} <= sizes


def documented(label: str) -> list[str]:
    """The cells of a row of the table in docs/gpu_agent.md."""
    text = (ROOT.parent / "docs" / "gpu_agent.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith(f"| {label}")]
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def shown(run: str) -> dict[str, str]:
    """What the table has to show of a full run."""
    ceilings = gpu(run)["ceilings"]
    copy, read = (value(run, f"hbm_{way}", buffer_bytes=4 * GIB) for way in ("copy", "read"))
    pinned = " / ".join(f"{value(run, f'{way}_pinned', bytes=GIB):.1f}" for way in ("h2d", "d2h"))
    rates = " / ".join(f"{ceilings[key]:.0f}" for key in ("bf16_tflops", "fp8_tflops", "int8_tops"))
    overhead = next(p["params"]["overhead"] for p in points(run, "lora_gemm") if (p["params"]["batch"],
                    p["params"]["rank"], p["params"]["adapters"]) == (64, 16, 8))  # fmt: skip
    return {
        "HBM copy / read": f"{copy:.0f} / {read:.0f}",
        "pinned H2D / D2H": pinned,
        "bf16 / fp8 / int8": rates,
        "launch eager / graph": f"{ceilings['kernel_launch_us']:.1f} / {ceilings['graph_kernel_us']:.2f}",
        "Triton fusion / plain copy": f"{value(run, 'fusion_triton'):.0f} / {value(run, 'fusion_copy'):.0f}",
        "decode attention": f"{value(run, 'decode_attention', batch=8, context=32768):.0f}",
        "adapters": f"{overhead:.0%}".replace("%", " %"),
        "full suite": f"{gpu(run)['suite_s']:.0f}",
    }


@pytest.mark.parametrize("column, run", list(enumerate(RUNS)))
def test_the_documented_figures_are_the_committed_ones(column: int, run: str) -> None:
    for label, text in shown(run).items():
        assert documented(label)[column].removesuffix(" (some caches cold)") == text, label


def test_the_documented_quick_suites_are_the_committed_ones() -> None:
    figures = [f"{gpu(f'quick-{caches}')['suite_s']:.0f} ({caches})" for caches in ("cold", "warm")]
    assert documented("quick suite")[:2] == figures
