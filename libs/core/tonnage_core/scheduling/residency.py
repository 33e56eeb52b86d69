"""Which adapters an endpoint holds: our own account of loads sent, corrected by what the engine lists."""

from collections import OrderedDict
from collections.abc import Collection


class Residency:
    """Adapters of one endpoint in order of use. `slots` None is unknown: nothing is evicted."""

    __slots__ = ("_in_flight", "_loading", "_order")

    def __init__(self) -> None:
        self._order: OrderedDict[str, None] = OrderedDict()
        self._loading: set[str] = set()
        self._in_flight: dict[str, int] = {}

    @property
    def names(self) -> set[str]:
        """Resident or being loaded."""
        return {*self._order, *self._loading}

    def holds(self, name: str) -> bool:
        """Whether the adapter is resident."""
        return name in self._order

    def begin_load(self, name: str) -> None:
        """A load was sent."""
        self._loading.add(name)

    def end_load(self, name: str, loaded: bool) -> None:
        """The load's answer."""
        self._loading.discard(name)
        if loaded:
            self._order[name] = None
            self._order.move_to_end(name)

    def unloaded(self, name: str) -> None:
        """The engine dropped it."""
        self._order.pop(name, None)

    def begin_use(self, name: str) -> None:
        """A request for the adapter goes to this endpoint."""
        self._in_flight[name] = self._in_flight.get(name, 0) + 1
        if name in self._order:
            self._order.move_to_end(name)

    def end_use(self, name: str) -> None:
        """That request ended."""
        left = self._in_flight.get(name, 0) - 1
        if left > 0:
            self._in_flight[name] = left
        else:
            self._in_flight.pop(name, None)

    def listed(self, names: Collection[str]) -> None:
        """The engine's own list: what it lacks is gone, what it has beyond ours is the oldest."""
        for name in [n for n in self._order if n not in names]:
            del self._order[name]
        for name in names:
            if name not in self._order:
                self._order[name] = None
                self._order.move_to_end(name, last=False)

    def victim(self, slots: int | None, known: Collection[str]) -> str | None:
        """The adapter to unload before one more is loaded: least recently used, not in use, and one of `known`, which
        can be loaded again; None when there is room, or when there is none such."""
        if slots is None or len(self._order) + len(self._loading) < slots:
            return None
        return next((name for name in self._order if name in known and name not in self._in_flight), None)
