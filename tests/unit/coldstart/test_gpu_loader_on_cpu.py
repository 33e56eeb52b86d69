"""The loader on the CPU device: byte-equal, verified, all or nothing."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import tonnage_coldstart
from tonnage_coldstart.errors import ContentMismatchError, SourceError
from tonnage_coldstart.loader.loading import LoadOptions
from tonnage_coldstart.loader.residency import resident
from tonnage_coldstart.loader.ring import release_rings
from tonnage_coldstart.manifest import dump_manifest, parse_manifest
from tonnage_coldstart.staging import Staged
from tonnage_core.coldstart.errors import CorruptFileError, InconsistentSnapshotError
from tonnage_core.coldstart.load_plan import Arena
from tonnage_core.coldstart.safetensors_header import parse_header

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.float8_e4m3fn, torch.bool, torch.int64)


@pytest.fixture
def model(tmp_path: Path, manifest_maker: Callable[..., None]) -> Path:
    """Two shards of many dtypes and odd sizes, with a manifest in chunks of 4 KiB."""
    folder = tmp_path / "weights"
    folder.mkdir()
    rng = Random(3)
    weight_map: dict[str, str] = {}
    for shard in ("a.safetensors", "b.safetensors"):
        tensors = {}
        for number in range(30):
            dtype = DTYPES[number % len(DTYPES)]
            shape = [(), (0, 4), (3,), (7, 5), (1111,), (64, 33)][number % 6]
            tensors[f"{shard[0]}.{number}"] = torch.randint(0, 1 + rng.randrange(1, 3), shape).to(dtype)
        save_file(tensors, folder / shard)
        weight_map |= dict.fromkeys(tensors, shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    manifest_maker(folder, chunk_bytes=4096)
    return folder


def seal(folder: Path) -> None:
    """Give the manifest the digest that a cache's manifest has."""
    path = folder / "tonnage-manifest.json"
    path.write_bytes(dump_manifest(parse_manifest(path.read_bytes(), need_digest=False)))


def reference(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    return found


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("threads", [1, 5])
def test_every_tensor_is_byte_equal_to_the_reference_reader(model: Path, threads: int) -> None:
    seal(model)
    loaded = tonnage_coldstart.load(model, "cpu", LoadOptions(threads=threads))
    expected = reference(model)
    assert loaded.keys() == expected.keys()
    assert all(same(loaded[name], expected[name]) for name in expected)
    assert loaded.report["verified"] is True
    assert loaded.report["bytes"] == sum(path.stat().st_size for path in model.glob("*.safetensors"))


def test_past_the_page_cache_the_bytes_are_the_same(model: Path) -> None:
    loaded = tonnage_coldstart.load(model, "cpu", LoadOptions(direct=True))
    expected = reference(model)
    assert all(same(loaded[name], expected[name]) for name in expected)
    release_rings()


def test_what_the_page_cache_does_not_hold_is_read_past_it_and_is_the_same(model: Path) -> None:
    seal(model)
    expected = reference(model)
    for path in model.glob("*.safetensors"):
        with path.open("r+b") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    loaded = tonnage_coldstart.load(model, "cpu", LoadOptions())
    assert loaded.report["verified"] is True
    assert all(same(loaded[name], expected[name]) for name in expected)
    release_rings()


def test_chunks_of_several_slabs_arrive_whole_in_one_allocation_a_file(
    tmp_path: Path, manifest_maker: Callable[..., None]
) -> None:
    generator = torch.Generator().manual_seed(4)
    sizes = {"a": (3 << 20) + 1, "b": 5, "c": (6 << 20) + 77}
    tensors = {
        name: torch.randint(0, 255, (size,), generator=generator).to(torch.uint8) for name, size in sizes.items()
    }
    save_file(tensors, tmp_path / "a.safetensors")
    manifest_maker(tmp_path, chunk_bytes=8 << 20)
    seal(tmp_path)
    for direct in (True, False):
        loaded = tonnage_coldstart.load(tmp_path, "cpu", LoadOptions(threads=2, direct=direct))
        assert loaded.report["verified"] is True
        assert loaded.report["ring"] == {"bytes": 2 * (2 << 20), "pinned": False}
        assert all(same(loaded[name], tensors[name]) for name in tensors)
        assert len({tensor.untyped_storage().data_ptr() for tensor in loaded.values()}) == 1
    release_rings()


def test_a_file_that_cannot_be_asked_counts_as_resident() -> None:
    assert resident(-1, 0, 4096)


def test_without_a_sealed_manifest_nothing_is_called_verified(model: Path) -> None:
    assert tonnage_coldstart.load(model, "cpu").report["verified"] is False


def test_a_flipped_byte_is_found_and_no_tensor_is_returned(model: Path) -> None:
    seal(model)
    victim = model / "b.safetensors"
    raw = bytearray(victim.read_bytes())
    raw[-3] ^= 1
    victim.write_bytes(raw)
    with pytest.raises(ContentMismatchError, match=r"b\.safetensors: CRC32C"):
        tonnage_coldstart.load(model, "cpu", LoadOptions())
    assert len(tonnage_coldstart.load(model, "cpu", LoadOptions(verify=False))) == 60


def test_a_staged_directory_loads_verified(model: Path, stage: Callable[..., Staged], tmp_path: Path) -> None:
    staged = stage(model)
    loaded = tonnage_coldstart.load(staged.path, "cpu")
    assert loaded.report["verified"] is True
    assert same(loaded["a.3"], reference(model)["a.3"])


def test_one_file_loads(model: Path) -> None:
    assert len(tonnage_coldstart.load(model / "a.safetensors", "cpu")) == 30


def test_a_missing_shard_a_wrong_index_and_a_tensor_twice_are_refused(model: Path) -> None:
    index = model / "model.safetensors.index.json"
    document: Any = json.loads(index.read_text())
    document["weight_map"]["a.0"] = "b.safetensors"
    index.write_text(json.dumps(document))
    with pytest.raises(InconsistentSnapshotError, match=r"'a\.0'"):
        tonnage_coldstart.load(model, "cpu")
    index.unlink()
    os.link(model / "a.safetensors", model / "c.safetensors")
    with pytest.raises(InconsistentSnapshotError, match=r"a\.safetensors and in c\.safetensors"):
        tonnage_coldstart.load(model, "cpu")
    document["weight_map"]["a.0"] = "gone.safetensors"
    index.write_text(json.dumps(document))
    with pytest.raises(InconsistentSnapshotError, match=r"gone\.safetensors"):
        tonnage_coldstart.load(model, "cpu")


def test_an_unknown_dtype_is_refused_with_its_tensor(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "X13", "shape": [2], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"ab")
    with pytest.raises(CorruptFileError, match=r"'w': dtype X13"):
        tonnage_coldstart.load(tmp_path, "cpu")


def test_a_failed_load_leaves_no_descriptor_open(model: Path, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (model / "b.safetensors").write_bytes(b"short")
    for _ in range(3):
        with pytest.raises((CorruptFileError, SourceError)):
            tonnage_coldstart.load(model, "cpu")
    assert len(os.listdir("/proc/self/fd")) == before


def test_segments_hold_each_byte_of_a_chunk_once_and_in_order() -> None:
    rng = Random(5)
    sizes = [rng.choice([0, 1, 511, 512, 700, 5000]) for _ in range(40)]
    at, entries = 0, {}
    for number, size in enumerate(sizes):
        entries[f"t{number}"] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(entries).encode()
    file_bytes = 8 + len(raw) + at
    arena = Arena(parse_header(raw, file_bytes, "f"))
    filled: dict[int, int] = {}
    for start in range(0, file_bytes, 1000):
        segments = arena.segments(start, min(1000, file_bytes - start))
        assert sum(one.length for one in segments) == min(1000, file_bytes - start)
        for one in segments:
            if one.arena_start is not None:
                filled |= {one.arena_start + i: one.file_start + i for i in range(one.length)}
    for tensor, offset in zip(arena.header.tensors, arena.offsets, strict=True):
        assert [filled[offset + i] for i in range(tensor.size_bytes)] == list(range(tensor.start, tensor.end))
        assert offset % 512 == 0
