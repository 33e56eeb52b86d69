"""What a node's cold-start service tells of its cache."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot on a node."""

    key: str
    path: str
    revision: str
    pinned: bool


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node's cold-start service. `snapshots` by URI; None: it does not answer. `jobs`: state and error by URI."""

    url: str
    snapshots: Mapping[str, Snapshot] | None = None
    jobs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
