"""`tonnage stage`: weights into the node cache, whole and verified, in this process."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bar

from tonnage_cli.directory import Directory
from tonnage_cli.finite import FiniteRange
from tonnage_cli.output import json_option, print_json, print_table
from tonnage_coldstart.cache.store import KEEP_FREE_BYTES, NodeCache
from tonnage_coldstart.documents import stage_report
from tonnage_coldstart.fetch.workers import FetchOptions
from tonnage_coldstart.progress import Progress
from tonnage_coldstart.sources.opening import SourceOptions, open_source
from tonnage_coldstart.sources.s3 import S3Options
from tonnage_coldstart.staging import Stager
from tonnage_core.errors import BadInputError
from tonnage_core.units import GIB
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.tls import client_context

REFRESH_S = 0.1


@click.command()
@click.argument("uri")
@click.option("--cache", type=Directory(), required=True, help="The node cache.")
@click.option("--quota-gib", type=FiniteRange(0, 1e9, min_open=True), help="Most GiB the cache may hold.")
@click.option(
    "--connections", type=click.IntRange(1, 256), default=8, show_default=True, help="Ranges in flight at once."
)
@click.option(
    "--timeout-s",
    type=FiniteRange(0, 86400, min_open=True),
    default=30.0,
    show_default=True,
    help="Of one connect, and of one wait for bytes.",
)
@click.option(
    "--attempts", type=click.IntRange(1, 100), default=6, show_default=True, help="Tries of one range before it fails."
)
@click.option(
    "--mb-per-s", type=FiniteRange(0, min_open=True), help="Most MB (10^6 bytes) a second to read; no cap without."
)
@click.option("--drop-behind", is_flag=True, help="Keep the files out of the page cache once they are on the disk.")
@click.option("--verify", is_flag=True, help="Read a snapshot that is already there again; fetch damaged chunks.")
@click.option("--pin", is_flag=True, help="Keep the snapshot from eviction.")
@click.option(
    "--token", envvar="TONNAGE_SOURCE_TOKEN", help="Bearer token; TONNAGE_SOURCE_TOKEN is better than a flag."
)
@click.option(
    "--ca-file", type=click.Path(exists=True, dir_okay=False), help="Certificates to trust beside the system's."
)
@click.option("--s3-endpoint", metavar="URL", help="An S3-compatible store; AWS without it.")
@click.option("--s3-region", metavar="NAME", help="Region of the bucket.")
@click.option("--s3-anonymous", is_flag=True, help="Send no credentials to S3.")
@json_option
def command(uri: str, cache: Path, *, quota_gib: float | None, as_json: bool, **given: Any) -> int:
    """Stage the model at URI (a path, file://, http://, https://, s3://) into a verified cache directory.

    A killed run resumes where it was. The path printed at the end holds the model's files and is whole: an engine can
    be started on it.
    """
    clock = SystemClock()
    quota = None if quota_gib is None else int(quota_gib * GIB)
    node_cache = NodeCache(cache.absolute(), clock, quota_bytes=quota, keep_free_bytes=KEEP_FREE_BYTES)
    source = open_source(uri, _source_options(given))
    cap = None if given["mb_per_s"] is None else given["mb_per_s"] * 1e6
    options = FetchOptions(given["connections"], given["attempts"], drop_behind=given["drop_behind"], bytes_per_s=cap)
    stager = Stager(node_cache, clock, options)
    progress, stop = Progress(clock.monotonic), threading.Event()
    try:
        if not (cache.is_dir() and not os.access(cache, os.W_OK)):
            node_cache.prepare()
        with _stopping(stop), _bar(progress, shown=not as_json and sys.stderr.isatty()):
            staged = stager.stage(source, progress, stop, verify=given["verify"], pin=given["pin"])
    finally:
        source.close()
    document = stage_report(staged)
    if as_json:
        print_json(document)
    else:
        _show(document)
    return 0


def _source_options(given: dict[str, Any]) -> SourceOptions:
    token = given["token"]
    if token is not None and not (token.isascii() and token.isprintable()):
        raise BadInputError("--token: only printable ASCII can stand in a header")
    if given["ca_file"] is not None:
        client_context(given["ca_file"])  # no authorities in it: said before anything is asked
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return SourceOptions(
        connections=given["connections"],
        timeout_s=given["timeout_s"],
        headers=headers,
        ca_file=given["ca_file"],
        s3=S3Options(given["s3_endpoint"], given["s3_region"], given["s3_anonymous"]),
    )


@contextlib.contextmanager
def _stopping(stop: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM end the transfer cleanly; what it has is kept."""
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _bar(progress: Progress, *, shown: bool) -> Iterator[None]:
    if not shown:
        yield
        return
    ended = threading.Event()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("plan", total=None)

        def watch() -> None:
            while not ended.wait(REFRESH_S):
                at = progress.standing()
                files = f" {at.files_done}/{at.files_total} files" if at.files_total else ""
                bar.update(task, description=at.phase + files, total=at.total_bytes, completed=at.done_bytes)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()


def _show(document: dict[str, Any]) -> None:
    phases = document["phases"]
    rows = [
        ("path", document["path"]),
        ("bytes", f"{document['bytes']:,}"),
        ("read from the source", f"{document['source_bytes']:,}"),
        ("cache hit", "yes" if document["cache_hit"] else "no"),
        ("verified by", document["verified_by"]),
        ("repaired files", ", ".join(document["repaired"]) or None),
        ("seconds", f"{document['seconds']:.2f}"),
        ("GB/s", None if document["gbps"] is None else f"{document['gbps']:.2f}"),
        *((name.removesuffix("_s"), f"{value:.2f} s") for name, value in phases.items() if value is not None),
    ]
    print_table("Staged", ("figure", "value"), rows)
