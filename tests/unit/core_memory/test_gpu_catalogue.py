"""GPUs by any of their names, or from what the agent measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from tonnage_core.hardware import UnknownGpuError, find_gpu
from tonnage_core.hardware.gpus import GPUS
from tonnage_core.hardware.profile import ProfileError, gpu_from_profile
from tonnage_runtime.catalogue import load_gpu

PROFILE: dict[str, Any] = {
    "schema": "tonnage.gpu_profile/1",
    "name": "H200-SXM-141GB",
    "memory_bytes": 150_109_880_320,
    "measured_at": "2026-11-29T12:12:00Z",
    "ceilings": {"hbm_copy_gbps": 4227, "hbm_read_gbps": 4196, "bf16_tflops": 767, "h2d_pinned_gbps": 54.5},
}


@pytest.mark.parametrize("name", ["H100", "h100-sxm", "NVIDIA H100 80GB HBM3", "h100_sxm", "H100-SXM-80GB"])
def test_any_alias_finds_the_card(name: str) -> None:
    assert find_gpu(name).name == "H100-SXM-80GB"


def test_no_alias_stands_for_two_cards() -> None:
    keys = [alias.lower() for gpu in GPUS for alias in {gpu.name, *gpu.aliases}]
    assert len(keys) == len(set(keys))


def test_every_card_names_its_source_and_is_positive() -> None:
    for gpu in GPUS:
        assert gpu.source and gpu.memory_gib > 0 and gpu.hbm_gbps > 0 and gpu.bf16_tflops > 0


def test_an_unknown_card_lists_the_known_ones() -> None:
    with pytest.raises(UnknownGpuError, match="H100-SXM-80GB"):
        find_gpu("TPU v5")


def test_measured_ceilings_replace_the_vendors_figures(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(PROFILE), encoding="utf-8")
    found = load_gpu(str(file))
    assert (found.hbm_gbps, found.bf16_tflops, found.pcie_gbps) == (4227, 767, 54.5)
    assert found.memory_gib == pytest.approx(139.8, abs=0.01)
    assert found.nvlink_gbps == 450 and "2026-11-29" in found.source


def test_a_card_the_catalogue_does_not_hold_is_taken_from_its_measurements() -> None:
    assert gpu_from_profile({**PROFILE, "name": "X1"}).name == "X1"
    with pytest.raises(UnknownGpuError):
        gpu_from_profile({"name": "X1"})


@pytest.mark.parametrize("changes", [{"name": ""}, {"memory_bytes": -1}, {"ceilings": {"bf16_tflops": "fast"}}])
def test_a_broken_profile_is_one_clear_error(changes: dict[str, Any]) -> None:
    with pytest.raises(ProfileError):
        gpu_from_profile({**PROFILE, **changes})
