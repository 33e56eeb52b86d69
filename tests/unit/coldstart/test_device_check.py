"""Chunks whose check is left to the device: which they are, what a wrong one does. The device is host memory here."""

import ctypes
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from crc32c import crc32c
from safetensors.torch import save_file

import tonnage_coldstart
from tonnage_coldstart.errors import ContentMismatchError
from tonnage_coldstart.loader import lanes
from tonnage_coldstart.loader.device_check import LANES, UNIT_BYTES, device_check, operators
from tonnage_coldstart.loader.loading import LoadOptions
from tonnage_coldstart.manifest import dump_manifest, parse_manifest
from tonnage_core.coldstart.crc_operator import lookup, over_bytes

CHUNK = 4096
OPTIONS = LoadOptions(threads=3, slab_bytes=2 * CHUNK, spare_slabs=1)


class HostCheck:
    """What the device does, over host memory."""

    def __init__(self) -> None:
        self.held: list[tuple[int, int, int]] = []

    def add(self, file: int, chunk: int, address: int) -> None:
        self.held.append((file, chunk, address))

    def checksums(self) -> list[tuple[int, int, int]]:
        return [(file, chunk, crc32c(ctypes.string_at(address, CHUNK))) for file, chunk, address in self.held]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> HostCheck:
    made = HostCheck()
    monkeypatch.setattr(lanes, "new_check", lambda stream, chunk_bytes: made)
    return made


@pytest.fixture
def model(tmp_path: Path, manifest_maker: Callable[..., None]) -> Path:
    """One shard: tensors of whole 512 bytes, so that they lie side by side, and an odd one at the end."""
    folder = tmp_path / "weights"
    folder.mkdir()
    generator = torch.Generator().manual_seed(2)
    tensors = {f"w{n}": torch.randint(0, 255, (7, 1024), generator=generator).to(torch.uint8) for n in range(6)}
    save_file({**tensors, "x": torch.ones(3)}, folder / "a.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys([*tensors, "x"], "a.safetensors")})
    )
    manifest_maker(folder, chunk_bytes=CHUNK)
    path = folder / "tonnage-manifest.json"
    path.write_bytes(dump_manifest(parse_manifest(path.read_bytes(), need_digest=False)))
    return folder


def test_whole_chunks_in_one_piece_are_left_to_the_device_and_all_others_are_checked_here(
    model: Path, check: HostCheck
) -> None:
    loaded = tonnage_coldstart.load(model, "cpu", OPTIONS)
    chunks = -(-(model / "a.safetensors").stat().st_size // CHUNK)
    left = {chunk for _, chunk, _ in check.held}
    assert loaded.report["verified"] is True
    assert len(left) == len(check.held)
    assert left
    assert not {0, chunks - 1} & left  # the header, and the short end
    assert left <= set(range(chunks))


def test_a_chunk_that_the_device_finds_wrong_fails_the_load_by_name(model: Path, check: HostCheck) -> None:
    tonnage_coldstart.load(model, "cpu", OPTIONS)
    chunk = sorted(chunk for _, chunk, _ in check.held)[len(check.held) // 2]
    check.held.clear()
    path = model / "a.safetensors"
    raw = bytearray(path.read_bytes())
    raw[chunk * CHUNK + 7] ^= 8
    path.write_bytes(raw)
    with pytest.raises(ContentMismatchError, match=rf"a\.safetensors: CRC32C of chunk {chunk}"):
        tonnage_coldstart.load(model, "cpu", OPTIONS)


def test_a_rank_leaves_the_chunks_that_it_keeps_whole_to_the_device(model: Path, check: HostCheck) -> None:
    """Names that no cut is known for are kept whole by every rank; the ranks share the checks."""
    left = set()
    for rank in range(2):
        options = LoadOptions(threads=2, slab_bytes=CHUNK)
        loaded = tonnage_coldstart.load(model, "cpu", options, tp_rank=rank, tp_size=2)
        assert loaded.report["verified"] is True
        left |= {chunk for _, chunk, _ in check.held}
        check.held.clear()
    assert left
    path = model / "a.safetensors"
    raw = bytearray(path.read_bytes())
    raw[max(left) * CHUNK + 100] ^= 1
    path.write_bytes(raw)
    failed = 0
    for rank in range(2):
        check.held.clear()
        try:
            tonnage_coldstart.load(model, "cpu", OPTIONS, tp_rank=rank, tp_size=2)
        except ContentMismatchError as error:
            assert f"chunk {max(left)}" in str(error)
            failed += 1
    assert failed


def test_without_checks_nothing_is_left_to_the_device(model: Path, check: HostCheck) -> None:
    tonnage_coldstart.load(model, "cpu", LoadOptions(slab_bytes=2 * CHUNK, verify=False))
    assert check.held == []


def test_the_kernels_tables_step_over_all_lanes_and_reach_every_distance() -> None:
    step, powers = operators()
    assert list(step) == lookup(over_bytes(UNIT_BYTES))
    assert powers[:32] == over_bytes(4)
    assert powers[-32:] == over_bytes(4 * LANES)
    assert len(powers) == 32 * LANES.bit_length()


def test_the_processor_checks_where_there_is_no_device() -> None:
    assert device_check(None, 8 << 20) is None
