"""On a machine with an NVIDIA GPU: `pytest -m gpu tests/gpu`. Nothing here depends on the GPU's model."""

from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def profile() -> Iterator[dict[str, Any]]:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU")
    from tonnage_gpu_agent.local_run import LocalOptions, local_probe

    yield local_probe(LocalOptions(suite="full", gpus=("0",)))["gpus"][0]


def test_no_probe_is_wrong_or_in_error(profile: dict[str, Any]) -> None:
    assert profile["outcome"] == "ok"
    assert [p for p in profile["probes"] if p["status"] not in ("ok", "unsupported")] == []


def test_a_healthy_gpu_is_ok(profile: dict[str, Any]) -> None:
    assert profile["verdict"]["status"] == "OK", profile["verdict"]["reasons"]


def test_the_fused_kernel_is_as_quick_as_a_copy(profile: dict[str, Any]) -> None:
    rates = {p["name"]: p["value"] for p in profile["probes"] if p["name"].startswith("fusion")}
    assert rates["fusion_triton"] >= 0.97 * rates["fusion_copy"]


def test_large_decode_attention_reads_at_memory_speed(profile: dict[str, Any]) -> None:
    large = [p for p in profile["probes"] if p["name"] == "decode_attention" and p["bytes"] >= 1 << 30]
    assert all(p["value"] >= 0.85 * profile["ceilings"]["hbm_copy_gbps"] for p in large)
