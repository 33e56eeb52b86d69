"""The operator's copy of the cluster: custom resources as kopf tells them, everything else by label-selected watches.

kopf filters by label only after it has received an object; pods, workloads and scalers of a whole cluster are too many
for that, so those are selected by the server.
"""

import threading
from collections.abc import Callable, Iterable, Mapping

from tonnage_operator.kinds import (
    CHILDREN,
    MANAGED,
    MANAGED_LABEL,
    NODES,
    POD_MONITORS,
    PODS,
    SCALED_OBJECTS,
    SCALERS,
    SERVER_LABEL,
    inside,
    key_of,
)
from tonnage_runtime.kube import KubeClient, KubeNotFoundError, Object, Resource
from tonnage_runtime.kube_reflector import Pace, Reflector

Changed = Callable[[str, Object], None]
"""(kind of watch, object): it appeared, changed or went."""
COLDSTART = "coldstart"


class Customs:
    """Custom resources by plural and `namespace/name`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: dict[str, dict[str, Object]] = {}

    def put(self, plural: str, item: Object) -> None:
        """It is there, like this."""
        with self._lock:
            self._items.setdefault(plural, {})[key_of(item)] = item

    def drop(self, plural: str, item: Object) -> None:
        """It is gone."""
        with self._lock:
            self._items.get(plural, {}).pop(key_of(item), None)

    def get(self, plural: str, namespace: str, name: str) -> Object | None:
        """One, or None."""
        with self._lock:
            return self._items.get(plural, {}).get(f"{namespace}/{name}")

    def all(self, plural: str) -> list[Object]:
        """Every one of a kind."""
        with self._lock:
            return list(self._items.get(plural, {}).values())

    def census(self, client: KubeClient, kinds: Iterable[Resource]) -> list[str]:
        """Compare with a list of each kind: what is gone is dropped; what is there and not known yet is returned."""
        unknown: list[str] = []
        for kind in kinds:
            with self._lock:
                before = dict(self._items.get(kind.plural, {}))
            try:
                listed = {key_of(item) for item in client.list(kind)[0]}
            except KubeNotFoundError:
                listed = set()
            with self._lock:
                items = self._items.setdefault(kind.plural, {})
                for key in before.keys() - listed:
                    # Only what has not been told of again meanwhile.
                    if items.get(key) is before[key]:
                        del items[key]
                unknown += [f"{kind.plural} {key}" for key in sorted(listed - items.keys())]
        return unknown


class Cluster:
    """Watches, and what they have seen. `objects` is None for a kind whose first list has not come."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        coldstart_selector: str,
        optional: Iterable[Resource],
        changed: Changed,
        called: Callable[[str, str], None],
        pace: Pace | None = None,
    ) -> None:
        self.customs = Customs()
        self._changed = changed
        self._last: dict[str, Mapping[str, Object]] = {}
        selected = [(kind.plural, kind, f"{MANAGED_LABEL}={MANAGED}") for kind in CHILDREN]
        selected += [(kind.plural, kind, "") for kind in (*SCALERS, NODES)]
        selected += [
            (PODS.plural, PODS, SERVER_LABEL),
            (COLDSTART, inside(PODS, namespace), coldstart_selector),
        ]
        there = {kind.plural for kind in optional}
        left_out = {kind.plural for kind in (POD_MONITORS, SCALED_OBJECTS)} - there
        self._reflectors = {
            name: Reflector(
                client,
                resource,
                selector,
                changed=lambda name=name: self._compare(name),  # type: ignore[misc]
                called=called,
                pace=pace,
                key=key_of,
            )
            for name, resource, selector in selected
            if name not in left_out
        }

    def start(self) -> None:
        """Begin every watch."""
        for reflector in self._reflectors.values():
            reflector.start()

    def stop(self) -> None:
        """End every watch."""
        threads = [threading.Thread(target=one.stop) for one in self._reflectors.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def missing(self) -> str | None:
        """Why nothing may be decided yet: the watches whose first list has not come, and their error."""
        waiting = [name for name, one in self._reflectors.items() if one.objects is None]
        if not waiting:
            return None
        errors = [str(error) for name in waiting if (error := self._reflectors[name].error) is not None]
        return f"not listed yet: {', '.join(sorted(waiting))}" + (f": {errors[0]}" if errors else "")

    def objects(self, name: str) -> Mapping[str, Object]:
        """Objects of one watch by `namespace/name`; empty for a kind that is not watched."""
        reflector = self._reflectors.get(name)
        return (reflector.objects or {}) if reflector is not None else {}

    def _compare(self, name: str) -> None:
        """Tell of each object that is another than before."""
        now = self._reflectors[name].objects or {}
        before = self._last.get(name, {})
        self._last[name] = now
        for key in now.keys() | before.keys():
            if now.get(key) is not before.get(key):
                found = now.get(key) or before.get(key)
                if found is not None:
                    self._changed(name, found)
