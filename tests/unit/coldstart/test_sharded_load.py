"""Loading under tensor parallelism on the CPU device: each rank its part, each byte read once, every chunk checked."""

import json
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import tonnage_coldstart
from tonnage_coldstart.errors import ContentMismatchError, SourceError
from tonnage_coldstart.loader.loading import LoadOptions
from tonnage_coldstart.manifest import dump_manifest, parse_manifest
from tonnage_core.coldstart.shard_plan import ShardError

HIDDEN, INNER, HEADS, KV, HEAD = 64, 96, 8, 4, 8


@pytest.fixture
def model(tmp_path: Path, manifest_maker: Callable[..., None]) -> Path:
    folder = tmp_path / "weights"
    folder.mkdir()
    generator = torch.Generator().manual_seed(1)
    shapes = {
        "q_proj.weight": (HEADS * HEAD, HIDDEN),
        "q_proj.bias": (HEADS * HEAD,),
        "k_proj.weight": (KV * HEAD, HIDDEN),
        "v_proj.weight": (KV * HEAD, HIDDEN),
        "o_proj.weight": (HIDDEN, HEADS * HEAD),
        "gate_proj.weight": (INNER, HIDDEN),
        "down_proj.weight": (HIDDEN, INNER),
        "input_layernorm.weight": (HIDDEN,),
    }
    for shard in range(2):
        tensors = {
            f"model.layers.{shard}.{name}": torch.randn(shape, generator=generator).to(torch.bfloat16)
            for name, shape in shapes.items()
        }
        save_file(tensors, folder / f"model-{shard}.safetensors")
    (folder / "config.json").write_text(json.dumps({"num_key_value_heads": KV}))
    manifest_maker(folder, chunk_bytes=4096)
    path = folder / "tonnage-manifest.json"
    path.write_bytes(dump_manifest(parse_manifest(path.read_bytes(), need_digest=False)))
    return folder


def expected_part(name: str, whole: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    if "norm" in name:
        return whole
    if "o_proj" in name or "down_proj" in name:
        return whole.chunk(size, dim=1)[rank]
    if ("k_proj" in name or "v_proj" in name) and size > KV:
        return whole.chunk(KV, dim=0)[rank * KV // size]
    return whole.chunk(size, dim=0)[rank]


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("verify", [True, False])
def test_each_rank_gets_its_part_of_every_tensor(model: Path, size: int, verify: bool) -> None:
    whole = tonnage_coldstart.load(model, "cpu")
    for rank in range(size):
        options = LoadOptions(threads=3, verify=verify, slab_bytes=8192)
        part = tonnage_coldstart.load(model, "cpu", options, tp_rank=rank, tp_size=size)
        assert part.keys() == whole.keys()
        for name, tensor in part.items():
            assert torch.equal(tensor, expected_part(name, whole[name], rank, size)), name
        assert part.report["verified"] is verify


def test_without_checks_the_ranks_read_each_byte_of_a_cut_tensor_once(model: Path) -> None:
    whole = tonnage_coldstart.load(model, "cpu")
    norms = sum(tensor.nbytes for name, tensor in whole.items() if "norm" in name)
    body = sum(tensor.nbytes for tensor in whole.values())
    loads = [
        tonnage_coldstart.load(model, "cpu", LoadOptions(verify=False), tp_rank=rank, tp_size=2) for rank in range(2)
    ]
    assert [load.report["source_bytes"] for load in loads] == [load.report["bytes"] for load in loads]
    assert sum(load.report["source_bytes"] for load in loads) == body + norms


def test_a_flipped_byte_anywhere_fails_the_load_of_some_rank(model: Path) -> None:
    victim = model / "model-1.safetensors"
    raw = victim.read_bytes()
    for at in range(1000, len(raw), 9000):
        victim.write_bytes(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :])
        failed = 0
        for rank in range(4):
            try:
                tonnage_coldstart.load(model, "cpu", tp_rank=rank, tp_size=4)
            except ContentMismatchError as error:
                assert "model-1.safetensors" in str(error)
                failed += 1
        assert failed, f"byte {at} was checked by no rank"
    victim.write_bytes(raw)


def test_a_width_the_model_cannot_be_cut_to_is_refused_before_anything_is_read(model: Path) -> None:
    with pytest.raises(ShardError, match="does not divide by 5"):
        tonnage_coldstart.load(model, "cpu", tp_rank=0, tp_size=5)
    with pytest.raises(ShardError, match="rank 2 of 2"):
        tonnage_coldstart.load(model, "cpu", tp_rank=2, tp_size=2)


def test_a_file_cut_short_before_it_is_mapped_is_one_clear_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(descriptor: int, *given: int, **named: int) -> mmap.mmap:
        os.truncate(f"/proc/self/fd/{descriptor}", 16)
        return truly(descriptor, *given, **named)

    truly = mmap.mmap
    monkeypatch.setattr(mmap, "mmap", cut)
    with pytest.raises(SourceError, match=r"safetensors: cannot be mapped: .*greater than file size"):
        tonnage_coldstart.load(model, "cpu", LoadOptions(verify=False, threads=1), tp_rank=0, tp_size=2)
