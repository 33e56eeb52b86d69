"""GpuProfile resources of a cluster: this node's are watched and written, other nodes' are listed."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tonnage_gpu_agent.profile_object import NODE_LABEL, PROBE_ANNOTATION, PRODUCT_LABEL, profile_labels
from tonnage_gpu_agent.profile_store import FLEET_MOST, ProfileStoreError, StoredProfile
from tonnage_runtime.kube import KubeClient, KubeConflictError, KubeError, KubeNotFoundError, Object, Resource
from tonnage_runtime.kube_reflector import Pace, Reflector

PROFILES = Resource("tonnage.dev", "v1alpha1", "gpuprofiles", "GpuProfile")
MANAGER = "tonnage-gpu-agent"
Called = Callable[[str, str], None]
"""(call, outcome): list, watch, fleet, create or apply; ok or an error's word."""


class KubeProfiles:
    """The profiles of node `node`."""

    def __init__(self, client: KubeClient, node: str, called: Called, pace: Pace | None = None) -> None:
        self._client, self._called, self._pace = client, called, pace
        self._node = profile_labels(node, "")[NODE_LABEL]
        self._reflector: Reflector | None = None

    def start(self, changed: Callable[[], None]) -> None:
        """List and watch this node's profiles in a thread."""
        selector = f"{NODE_LABEL}={self._node}"
        self._reflector = Reflector(
            self._client, PROFILES, selector, changed=changed, called=self._called, pace=self._pace
        )
        self._reflector.start()

    def stop(self) -> None:
        """End the watch and the connections."""
        if self._reflector is not None:
            self._reflector.stop()
        self._client.close()

    def own(self) -> Mapping[str, StoredProfile]:
        """This node's profiles by name, as last seen."""
        seen = self._reflector
        if seen is None or seen.objects is None:
            error = seen.error if seen is not None else None
            outcome = error.outcome if error is not None else "starting"
            raise ProfileStoreError(outcome, str(error or "this node's GpuProfiles are not listed yet"))
        return {name: _stored(item) for name, item in seen.objects.items()}

    def fleet(self, product: str) -> Sequence[Mapping[str, Any]]:
        """Statuses of other nodes' GPUs of `product`: one page, from the server's cache."""
        label = profile_labels("", product)[PRODUCT_LABEL]
        with self._told("fleet"):
            items, _ = self._client.list(PROFILES, f"{PRODUCT_LABEL}={label},{NODE_LABEL}!={self._node}", FLEET_MOST)
        return [status for item in items if isinstance(status := item.get("status"), dict)]

    def put(self, name: str, labels: Mapping[str, str], status: Mapping[str, Any]) -> None:
        """Apply the status; an object that is not there is created first. A status cannot create one."""
        try:
            with self._told("apply"):
                self._client.apply_status(PROFILES, name, status, manager=MANAGER)
        except ProfileStoreError as error:
            if not isinstance(error.__cause__, KubeNotFoundError):
                raise
            self._create(name, labels)
            with self._told("apply"):
                self._client.apply_status(PROFILES, name, status, manager=MANAGER)

    def _create(self, name: str, labels: Mapping[str, str]) -> None:
        try:
            with self._told("create"):
                self._client.create(PROFILES, {"metadata": {"name": name, "labels": dict(labels)}}, manager=MANAGER)
        except ProfileStoreError as error:
            if not isinstance(error.__cause__, KubeConflictError):
                raise

    @contextlib.contextmanager
    def _told(self, call: str) -> Iterator[None]:
        """Count the call, and put its error in the store's words."""
        try:
            yield
        except KubeError as error:
            self._called(call, error.outcome)
            hint = ": is the chart's CRD installed?" if call == "create" and error.outcome == "not_found" else ""
            raise ProfileStoreError(error.outcome, f"{error}{hint}", error.retry_after_s) from error
        self._called(call, "ok")


def _stored(item: Object) -> StoredProfile:
    annotations = item["metadata"].get("annotations") or {}
    return StoredProfile(annotations.get(PROBE_ANNOTATION), item.get("status") or {})
