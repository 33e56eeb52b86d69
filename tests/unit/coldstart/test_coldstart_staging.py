"""Staging from a local directory: whole and verified, or not at all."""

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tonnage_coldstart.cache.layout import Layout
from tonnage_coldstart.cache.scrub import scrub
from tonnage_coldstart.cache.store import NodeCache
from tonnage_coldstart.errors import ContentMismatchError, NotCachedError, SourceError, UnknownSourceError
from tonnage_coldstart.manifest import BadManifestError, parse_manifest
from tonnage_coldstart.staging import Staged
from tonnage_core.coldstart.errors import CorruptFileError, InconsistentSnapshotError, UnsafeNameError

StageUri = Callable[..., Staged]
Same = Callable[[Path, Path], bool]


def flip(path: Path, at: int = 50_000) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_a_directory_is_staged_byte_for_byte_and_the_second_time_is_a_hit(
    checkpoint: Path, stage: StageUri, same_files: Same
) -> None:
    first = stage(checkpoint)
    again = stage(checkpoint)
    assert same_files(checkpoint, first.path)
    assert (first.cache_hit, again.cache_hit) == (False, True)
    assert first.source_bytes == first.bytes
    assert again.source_bytes == 0
    assert again.path == first.path
    assert first.verified_by == "transfer"


def test_digests_of_the_source_are_used(described: Path, stage: StageUri, same_files: Same) -> None:
    staged = stage(described)
    assert staged.verified_by == "source-digests"
    assert staged.revision == "r1"
    assert same_files(described, staged.path)


@pytest.mark.parametrize("kind", ["sha256", "crcs"])
def test_a_source_file_unlike_its_digest_is_refused(
    checkpoint: Path, stage: StageUri, manifest_maker: Callable[..., None], cache: NodeCache, kind: str
) -> None:
    manifest_maker(checkpoint, sha256=kind == "sha256", crcs=kind == "crcs")
    flip(checkpoint / "model-00001-of-00002.safetensors")
    with pytest.raises(ContentMismatchError, match=r"model-00001-of-00002\.safetensors"):
        stage(checkpoint)
    assert cache.entries() == []


def test_after_a_bad_digest_a_mended_source_is_staged(
    checkpoint: Path, stage: StageUri, manifest_maker: Callable[..., None], same_files: Same
) -> None:
    manifest_maker(checkpoint, crcs=False)
    shard = checkpoint / "model-00002-of-00002.safetensors"
    flip(shard)
    with pytest.raises(ContentMismatchError):
        stage(checkpoint)
    flip(shard)
    assert same_files(checkpoint, stage(checkpoint).path)


def test_a_flipped_byte_is_found_by_the_scrub_and_only_its_chunk_is_fetched_again(
    described: Path, stage: StageUri, cache: NodeCache, same_files: Same
) -> None:
    staged = stage(described)
    flip(staged.path / "model-00001-of-00002.safetensors", at=70_000)
    cached = cache.find(staged.key)
    assert cached is not None
    assert [(d.name, d.chunks) for d in scrub(cached)] == [("model-00001-of-00002.safetensors", (1,))]
    repaired = stage(described, verify=True)
    assert repaired.repaired == ("model-00001-of-00002.safetensors",)
    assert repaired.source_bytes == 64 << 10
    assert same_files(described, repaired.path)
    assert stage(described).cache_hit


def test_a_byte_flipped_without_a_trace_in_size_and_time_is_found(
    described: Path, stage: StageUri, cache: NodeCache
) -> None:
    staged = stage(described)
    victim = staged.path / "model-00002-of-00002.safetensors"
    before = victim.stat()
    flip(victim)
    os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert stage(described).cache_hit, "nothing shows without reading"
    assert stage(described, verify=True).repaired == (victim.name,)


def test_a_file_lost_from_the_cache_is_noticed_without_being_asked(
    checkpoint: Path, stage: StageUri, same_files: Same
) -> None:
    staged = stage(checkpoint)
    (staged.path / "config.json").unlink()
    again = stage(checkpoint)
    assert again.repaired == ("config.json",)
    assert again.source_bytes == (checkpoint / "config.json").stat().st_size
    assert same_files(checkpoint, again.path)


def test_a_damaged_manifest_means_no_snapshot(checkpoint: Path, stage: StageUri, cache: NodeCache) -> None:
    staged = stage(checkpoint)
    flip(staged.path / "tonnage-manifest.json", at=100)
    assert cache.find(staged.key) is None
    assert not stage(checkpoint).cache_hit


def test_a_changed_source_is_another_snapshot(checkpoint: Path, stage: StageUri) -> None:
    first = stage(checkpoint)
    (checkpoint / "config.json").write_text('{"model_type": "other"}')
    second = stage(checkpoint)
    assert second.key != first.key
    assert json.loads((second.path / "config.json").read_text())["model_type"] == "other"


def test_a_staged_directory_is_itself_a_source_with_digests(
    checkpoint: Path, stage: StageUri, tmp_path: Path, cache: NodeCache
) -> None:
    first = stage(checkpoint)
    other = NodeCache(tmp_path / "other", cache._clock, keep_free_bytes=0)
    other.prepare()
    second = stage(first.path, into=other)
    assert second.verified_by == "source-digests"
    assert second.revision == first.revision


def test_eight_stagers_at_once_read_the_source_once(checkpoint: Path, stage: StageUri, same_files: Same) -> None:
    barrier = threading.Barrier(8)

    def one(_: int) -> Staged:
        barrier.wait()
        return stage(checkpoint)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(one, range(8)))
    assert sum(not result.cache_hit for result in results) == 1
    assert sum(result.source_bytes for result in results) == results[0].bytes
    assert same_files(checkpoint, results[0].path)


def test_an_index_that_names_a_missing_shard_is_refused_before_anything_is_fetched(
    checkpoint: Path, stage: StageUri, cache: NodeCache
) -> None:
    (checkpoint / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InconsistentSnapshotError, match=r"model-00002-of-00002\.safetensors"):
        stage(checkpoint)
    assert list(cache.layout.incoming.iterdir()) == []


def test_an_index_that_names_the_wrong_shard_is_refused(checkpoint: Path, stage: StageUri, cache: NodeCache) -> None:
    index = checkpoint / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["layer.1.0"] = "model-00002-of-00002.safetensors"
    index.write_text(json.dumps(document))
    with pytest.raises(InconsistentSnapshotError, match=r"'layer.1.0' in model-00002.*it is in model-00001"):
        stage(checkpoint)
    assert cache.entries() == []


def test_a_truncated_shard_is_refused_with_its_name(checkpoint: Path, stage: StageUri, cache: NodeCache) -> None:
    shard = checkpoint / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1000])
    with pytest.raises(CorruptFileError, match=r"model-00001-of-00002\.safetensors"):
        stage(checkpoint)
    assert cache.entries() == []


def test_a_link_out_of_the_directory_is_refused(checkpoint: Path, stage: StageUri, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (checkpoint / "extra.json").symlink_to(secret)
    with pytest.raises(SourceError, match=r"extra\.json.*refused"):
        stage(checkpoint)


def test_a_hugging_face_cache_is_staged_through_its_links(checkpoint: Path, stage: StageUri, tmp_path: Path) -> None:
    hub = tmp_path / "hub" / "models--org--name"
    snapshot = hub / "snapshots" / "abc123"
    (hub / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("abc123")
    for number, path in enumerate(sorted(checkpoint.iterdir())):
        path.rename(hub / "blobs" / f"blob{number}")
        (snapshot / path.name).symlink_to(f"../../blobs/blob{number}")
    staged = stage(hub)
    assert staged.revision == "abc123"
    assert staged.key.startswith("org-name--")
    assert not any(path.is_symlink() for path in staged.path.iterdir())


@pytest.mark.parametrize(
    "name", ["../evil.safetensors", "/etc/x.safetensors", "a/../../b.safetensors", "a\\b.safetensors"]
)
def test_a_manifest_cannot_name_a_file_outside(checkpoint: Path, stage: StageUri, name: str) -> None:
    document = {"schema": "tonnage.manifest/1", "files": [{"name": name, "size": 1}]}
    (checkpoint / "tonnage-manifest.json").write_text(json.dumps(document))
    with pytest.raises(UnsafeNameError, match="refused"):
        stage(checkpoint)


def test_a_directory_without_weights_says_so(tmp_path: Path, stage: StageUri) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InconsistentSnapshotError, match=r"no \.safetensors file"):
        stage(tmp_path / "empty")


@pytest.mark.parametrize("uri", ["", "gopher://x", "file://other/path", "http://", "nowhere", "a\nb"])
def test_a_uri_no_source_serves_is_bad_input(stage: StageUri, uri: str) -> None:
    with pytest.raises(UnknownSourceError):
        stage(uri)


@pytest.mark.parametrize("key", ["../x", "a/b", "", ".", "x--..", "a--0123456789abcdeg"])
def test_a_key_cannot_leave_the_cache(cache: NodeCache, key: str) -> None:
    with pytest.raises(NotCachedError):
        cache.delete(key)


@pytest.mark.parametrize(
    "document",
    [
        b"[]",
        b"{",
        b'{"schema": "tonnage.manifest/2", "files": []}',
        b'{"schema": "tonnage.manifest/1", "files": [{"name": "a", "size": -1}]}',
        b'{"schema": "tonnage.manifest/1", "files": [{"name": "a", "size": 1}, {"name": "a", "size": 1}]}',
        b'{"schema": "tonnage.manifest/1", "files": [{"name": "a", "size": 1, "crc32c": [1, 2]}]}',
        b'{"schema": "tonnage.manifest/1", "files": [], "digest": "00"}',
    ],
)
def test_a_bad_manifest_is_refused(document: bytes) -> None:
    with pytest.raises(BadManifestError):
        parse_manifest(document, need_digest=False)


def test_the_trash_of_a_killed_process_is_emptied(cache: NodeCache) -> None:
    left = Layout(cache.layout.root).trash / "old"
    left.mkdir()
    (left / "file").write_bytes(b"x")
    cache.prepare()
    assert list(cache.layout.trash.iterdir()) == []
