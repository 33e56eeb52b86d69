"""An HTTP source may refuse, lie or break: recovery or one clear error, never a wrong byte."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tonnage_coldstart.cache.store import NodeCache
from tonnage_coldstart.errors import (
    ContentMismatchError,
    SourceChangedError,
    SourceError,
    TransientSourceError,
    UnknownSourceError,
)
from tonnage_coldstart.sources.http_ranges import retry_after_s
from tonnage_coldstart.staging import Staged
from tonnage_core.coldstart.errors import InconsistentSnapshotError

StageUri = Callable[..., Staged]
Same = Callable[[Path, Path], bool]
SHARD = "model-00001-of-00002.safetensors"


class Once:
    """Change the first `times` ranged replies for a shard."""

    def __init__(self, change: Callable[[Any], Any], times: int = 1, method: str = "GET", name: str = SHARD) -> None:
        self.change, self.left, self.method, self.name = change, times, method, name

    def __call__(self, method: str, name: str, reply: Any) -> Any:
        if method == self.method and name == self.name and self.left > 0:
            self.left -= 1
            return self.change(reply)
        return reply


def short(reply: Any) -> Any:
    reply.headers["Content-Length"] = str(len(reply.body))
    reply.body = reply.body[:-10]
    return reply


def shifted(reply: Any) -> Any:
    reply.headers["Content-Range"] = reply.headers["Content-Range"].replace("bytes ", "bytes 1")
    return reply


def page(reply: Any) -> Any:
    return type(reply)(200, {"Content-Type": "text/html"}, b"<html>sign in</html>")


def wrong_total(reply: Any) -> Any:
    reply.headers["Content-Range"] = reply.headers["Content-Range"].rpartition("/")[0] + "/999"
    return reply


def flipped(reply: Any) -> Any:
    reply.body = reply.body[:-1] + bytes([reply.body[-1] ^ 1])
    return reply


def busy(reply: Any) -> Any:
    return type(reply)(503, {"Retry-After": "0"}, b"")


def other_etag(reply: Any) -> Any:
    reply.headers["ETag"] = '"other"'
    return reply


def cut(reply: Any) -> Any:
    return None


def as_200(reply: Any) -> Any:
    reply.status = 200
    return reply


def test_a_directory_with_a_manifest_is_staged_in_ranges(
    origin: Any, described: Path, stage: StageUri, same_files: Same
) -> None:
    staged = stage(origin.url)
    assert same_files(described, staged.path)
    assert staged.source_bytes == staged.bytes
    assert sum(1 for method, name, wanted in origin.requests if name == SHARD and wanted) == 8


@pytest.mark.parametrize("listing", [True, False])
def test_a_directory_without_a_manifest_is_listed_by_its_page_or_asked_by_name(
    origin: Any, checkpoint: Path, stage: StageUri, same_files: Same, listing: bool
) -> None:
    origin.listing = listing
    assert same_files(checkpoint, stage(origin.url).path)


def test_one_file_can_be_named(origin: Any, checkpoint: Path, stage: StageUri) -> None:
    staged = stage(f"{origin.url}/{SHARD}")
    assert [path.name for path in staged.path.glob("*.safetensors")] == [SHARD]


def test_a_server_without_ranges_is_read_from_the_beginning(
    origin: Any, described: Path, stage: StageUri, same_files: Same
) -> None:
    origin.ranges = False
    assert same_files(described, stage(origin.url).path)


@pytest.mark.parametrize("fault", [short, shifted, flipped, busy, cut])
def test_a_fault_that_passes_is_recovered_from(
    origin: Any, described: Path, stage: StageUri, same_files: Same, fault: Callable[[Any], Any]
) -> None:
    origin.fault = Once(fault, times=2)
    staged = stage(origin.url, attempts=6)
    assert staged.retries >= 1
    assert same_files(described, staged.path)


def test_a_200_with_an_exact_content_range_is_accepted(
    origin: Any, described: Path, stage: StageUri, same_files: Same
) -> None:
    origin.fault = Once(as_200, times=1000)
    assert same_files(described, stage(origin.url).path)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (short, TransientSourceError),
        (shifted, TransientSourceError),
        (flipped, ContentMismatchError),
        (busy, TransientSourceError),
        (page, SourceError),
        (wrong_total, SourceChangedError),
        (other_etag, SourceChangedError),
        (cut, TransientSourceError),
    ],
)
def test_a_fault_that_stays_is_one_error_that_names_the_file(
    origin: Any, described: Path, stage: StageUri, cache: NodeCache, fault: Callable[[Any], Any], error: type[Exception]
) -> None:
    origin.fault = Once(fault, times=1000)
    with pytest.raises(error, match=SHARD):
        stage(origin.url, attempts=2)
    assert cache.entries() == []


def test_a_file_replaced_midway_is_refused(origin: Any, described: Path, stage: StageUri, cache: NodeCache) -> None:
    original = (described / SHARD).read_bytes()

    def replace(count: int) -> None:
        if count == len(list(described.iterdir())) + 6:
            (described / SHARD).write_bytes(original[::-1])

    origin.on_request = replace
    with pytest.raises((SourceChangedError, ContentMismatchError)):
        stage(origin.url, attempts=1)
    assert cache.entries() == []


def test_missing_credentials_are_not_retried(origin: Any, described: Path, stage: StageUri) -> None:
    origin.fault = Once(lambda reply: type(reply)(403, {}, b""), times=1000)
    with pytest.raises(SourceError, match="answered 403: credentials"):
        stage(origin.url)


def test_a_sign_in_page_for_the_index_is_named(origin: Any, checkpoint: Path, stage: StageUri) -> None:
    origin.fault = Once(page, times=1000, name="model.safetensors.index.json")
    with pytest.raises(InconsistentSnapshotError, match="HTML came instead of JSON"):
        stage(origin.url)


def test_a_shard_the_server_lost_is_named(origin: Any, checkpoint: Path, stage: StageUri) -> None:
    (checkpoint / SHARD).unlink()
    with pytest.raises(InconsistentSnapshotError, match=SHARD):
        stage(origin.url)


def test_a_redirect_is_followed_without_the_credentials_of_the_first_host(
    origin: Any, described: Path, stage: StageUri, same_files: Same
) -> None:
    other = origin.url.replace("127.0.0.1", "localhost")

    def away(method: str, name: str, reply: Any) -> Any:
        return type(reply)(302, {"Location": f"{other}/moved?name={name}"}, b"") if name == SHARD else reply

    origin.fault = away
    with pytest.raises(SourceError, match=SHARD):
        stage(origin.url)
    assert any(name == "moved" for _, name, _ in origin.requests)


def test_a_redirect_to_a_file_url_is_refused(origin: Any, described: Path, stage: StageUri) -> None:
    origin.fault = Once(
        lambda reply: type(reply)(302, {"Location": "file:///etc/passwd"}, b""), times=1000, method="HEAD"
    )
    with pytest.raises(SourceError, match="refused"):
        stage(origin.url)


def test_a_dead_server_is_one_error(stage: StageUri) -> None:
    with pytest.raises(TransientSourceError, match=r"127\.0\.0\.1:9"):
        stage("http://127.0.0.1:9/model")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), ("7", 7.0), ("Thu, 01 Jan 1970 00:01:40 GMT", 60.0), ("soon", None), ("-1", None), ("\xb2", None)],
)
def test_retry_after_is_read_as_seconds_or_date(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value, now_s=40.0) == seconds


def unpinned(reply: Any) -> Any:
    reply.headers.pop("ETag", None)
    return reply


def test_a_directory_page_that_is_busy_is_asked_again(
    origin: Any, checkpoint: Path, stage: StageUri, same_files: Same
) -> None:
    (checkpoint / "modeling_test.py").write_text("")  # not among the names asked for without a page
    origin.listing = True
    origin.fault = Once(busy, name="")
    assert same_files(checkpoint, stage(origin.url).path)


@pytest.mark.usefixtures("checkpoint")
def test_files_that_nothing_pins_are_refused(origin: Any, stage: StageUri) -> None:
    origin.fault = lambda method, name, reply: unpinned(reply)
    with pytest.raises(SourceError, match="neither ETag nor Last-Modified"):
        stage(origin.url)


def test_checksums_of_a_manifest_pin_too(origin: Any, described: Path, stage: StageUri, same_files: Same) -> None:
    origin.fault = lambda method, name, reply: unpinned(reply)
    assert same_files(described, stage(origin.url).path)


def test_spaces_and_letters_beyond_ascii_of_an_address_are_escaped(
    origin: Any, checkpoint: Path, stage: StageUri, same_files: Same
) -> None:
    assert same_files(checkpoint, stage(f"{origin.url}?of=a b\u00e9").path)


@pytest.mark.parametrize("uri", ["file:///a%00b", "file://", "~nobody-of-this-name/model", "\ud800"])
def test_a_path_that_cannot_be_one_is_refused(stage: StageUri, uri: str) -> None:
    with pytest.raises(UnknownSourceError):
        stage(uri)
