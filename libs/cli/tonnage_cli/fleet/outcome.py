"""The document of `tonnage up`, its HTML page, and the exit code that follows from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def up_document(
    documents: Mapping[str, Mapping[str, Any]],
    policy: str,
    urls: Mapping[str, Any],
    scaled: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The fleet's own policy at the top, every policy under `policies`, the URLs beside them (CONTRACTS); `autoscale`
    of a fleet that is scaled.
    """
    found = {**documents[policy], "policy": policy, "policies": dict(documents), "urls": dict(urls)}
    return found if scaled is None else found | {"autoscale": dict(scaled)}


def exit_code(documents: Mapping[str, Mapping[str, Any]], scaled: Mapping[str, Any] | None = None) -> int:
    """1 when a request failed, a run is void or a scaled fleet cut a stream, else 0."""
    failed = any(doc["requests"]["errors"] or doc["client"]["bound"] for doc in documents.values())
    return 1 if failed or (scaled is not None and scaled["cut_streams"]) else 0


def html_path(state_dir: Path) -> Path:
    """Where the page with the curves goes."""
    return state_dir / "report.html"


def write_atomically(path: Path, body: bytes) -> None:
    """Write beside `path`, then rename: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(body)
    temporary.replace(path)
