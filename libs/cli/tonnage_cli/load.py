"""`tonnage load`: weights to a device, verified, with the time of each phase."""

import threading
from pathlib import Path
from typing import Any

import click

from tonnage_cli.directory import Directory
from tonnage_cli.output import json_option, print_json, print_table
from tonnage_coldstart.cache.store import NodeCache
from tonnage_coldstart.documents import stage_report
from tonnage_coldstart.progress import Progress
from tonnage_coldstart.sources.opening import SourceOptions, open_source
from tonnage_coldstart.staging import Stager
from tonnage_core.errors import BadInputError
from tonnage_runtime.clock import SystemClock


@click.command()
@click.argument("uri")
@click.option("--device", default="cuda", show_default=True, help="cuda, cuda:1 or cpu.")
@click.option("--cache", type=Directory(), help="Stage into this node cache first.")
@click.option("--threads", type=click.IntRange(1, 64), help="Readers; by default one a core, 8 to 16.")
@click.option("--no-verify", is_flag=True, help="Leave the checksums of a staged directory unread.")
@click.option("--direct", is_flag=True, help="Read past the page cache also what it holds.")
@json_option
def command(
    uri: str, device: str, cache: Path | None, threads: int | None, no_verify: bool, direct: bool, as_json: bool
) -> int:
    """Load the model at URI onto a device and say how long each phase took.

    A remote URI is staged into --cache first; a directory is read as it is. Needs torch.
    """
    staged = _stage(uri, cache) if cache is not None else None
    if staged is None and "://" in uri and not uri.startswith("file://"):
        raise BadInputError(f"{uri}: a remote model is staged first: name a cache directory with --cache")
    path = Path(staged["path"]) if staged is not None else Path(uri.removeprefix("file://"))
    document = _load(path, device, threads=threads, verify=not no_verify, direct=direct)
    if staged is not None:
        document = _joined(document, staged)
    if as_json:
        print_json(document)
    else:
        _show(document)
    return 0


def _load(path: Path, device: str, *, threads: int | None, verify: bool, direct: bool) -> dict[str, Any]:
    try:
        from tonnage_coldstart.loader.loading import LoadOptions, load_directory
    except ImportError as error:
        raise BadInputError(
            f"loading needs torch, which is not installed ({error}): pip install 'tonnage[torch]'"
        ) from error
    return load_directory(path, device, LoadOptions(threads=threads, verify=verify, direct=direct or None)).report


def _stage(uri: str, cache: Path) -> dict[str, Any]:
    clock = SystemClock()
    node_cache = NodeCache(cache.absolute(), clock)
    node_cache.prepare()
    source = open_source(uri, SourceOptions())
    try:
        stager = Stager(node_cache, clock)
        return stage_report(stager.stage(source, Progress(clock.monotonic), threading.Event()))
    finally:
        source.close()


def _joined(loaded: dict[str, Any], staged: dict[str, Any]) -> dict[str, Any]:
    """The load's document with the phases of staging before it; `source_bytes` are those that left the source."""
    seconds = loaded["seconds"] + staged["seconds"]
    phases = {name: loaded["phases"][name] or staged["phases"][name] for name in ("fetch_s", "verify_s", "h2d_s")}
    return loaded | {
        "source_bytes": staged["source_bytes"],
        "cache_hit": staged["cache_hit"],
        "seconds": seconds,
        "gbps": loaded["bytes"] / seconds / 1e9,
        "phases": {"plan_s": loaded["phases"]["plan_s"] + staged["phases"]["plan_s"], **phases},
    }


def _show(document: dict[str, Any]) -> None:
    ring = document["ring"]
    rows = [
        ("path", document["path"]),
        ("tensors", f"{document['tensors']:,}"),
        ("bytes", f"{document['bytes']:,}"),
        ("verified", "yes" if document["verified"] else "no"),
        ("ring", None if ring is None else f"{ring['bytes'] >> 20} MiB{' pinned' if ring['pinned'] else ''}"),
        ("seconds", f"{document['seconds']:.3f}"),
        ("GB/s", f"{document['gbps']:.2f}"),
        *(
            (name.removesuffix("_s"), f"{value:.3f} s")
            for name, value in document["phases"].items()
            if value is not None
        ),
    ]
    print_table("Loaded", ("figure", "value"), rows)
