"""Where GpuProfile resources are kept: what the agent asks of it, and the embedded one in memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tonnage_gpu_agent.errors import AgentError
from tonnage_gpu_agent.profile_object import NODE_LABEL, PRODUCT_LABEL, profile_labels

FLEET_MOST = 200
"""Profiles of other nodes that are read at most: a median needs no more."""


class ProfileStoreError(AgentError):
    """The store did not do what was asked; `outcome` is a small word for metrics."""

    def __init__(self, outcome: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class StoredProfile:
    """One resource as it is kept. `request` is the value of the probe annotation, None without one."""

    request: str | None = None
    status: Mapping[str, Any] = field(default_factory=dict)


class ProfileSource(Protocol):
    """What is kept of this node and of others."""

    def start(self, changed: Callable[[], None]) -> None:
        """Follow this node's profiles; `changed` is called from any thread."""
        ...

    def stop(self) -> None:
        """Stop following; blocks for some seconds at most."""
        ...

    def own(self) -> Mapping[str, StoredProfile]:
        """This node's profiles by name, as last seen; `ProfileStoreError` before they were ever seen."""
        ...

    def fleet(self, product: str) -> Sequence[Mapping[str, Any]]:
        """Statuses of other nodes' GPUs of `product`, at most `FLEET_MOST`. Blocks; `ProfileStoreError`."""
        ...


class ProfileSink(Protocol):
    """Where this node's profiles go."""

    def put(self, name: str, labels: Mapping[str, str], status: Mapping[str, Any]) -> None:
        """Create the profile if there is none, and make `status` its status. Blocks; `ProfileStoreError`."""
        ...


class ProfileStore(ProfileSource, ProfileSink, Protocol):
    """Both."""


class MemoryProfiles:
    """The embedded store of one node: what is put here is seen here."""

    def __init__(self, node: str) -> None:
        self._node = profile_labels(node, "")[NODE_LABEL]
        self._changed: Callable[[], None] = lambda: None
        self.labels: dict[str, Mapping[str, str]] = {}
        self.kept: dict[str, StoredProfile] = {}

    def start(self, changed: Callable[[], None]) -> None:
        """Follow this node's profiles."""
        self._changed = changed

    def stop(self) -> None:
        """Stop following."""
        self._changed = lambda: None

    def own(self) -> Mapping[str, StoredProfile]:
        """This node's profiles by name."""
        return {name: kept for name, kept in self.kept.items() if self.labels[name][NODE_LABEL] == self._node}

    def fleet(self, product: str) -> Sequence[Mapping[str, Any]]:
        """Statuses of other nodes' GPUs of `product`."""
        wanted = profile_labels("", product)[PRODUCT_LABEL]
        others = [n for n, has in self.labels.items() if has[NODE_LABEL] != self._node and has[PRODUCT_LABEL] == wanted]
        return [self.kept[name].status for name in others][:FLEET_MOST]

    def put(self, name: str, labels: Mapping[str, str], status: Mapping[str, Any]) -> None:
        """Keep the profile; its annotation stays."""
        self.labels.setdefault(name, labels)
        request = self.kept[name].request if name in self.kept else None
        self.kept[name] = StoredProfile(request, dict(status))
        self._changed()

    def annotate(self, name: str, request: str | None) -> None:
        """Ask for a probe, as an operator would; None takes the request back."""
        self.kept[name] = StoredProfile(request, self.kept[name].status)
        self._changed()
