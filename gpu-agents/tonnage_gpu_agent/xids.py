"""XIDs from the driver's events and from the kernel log, counted once each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock

from tonnage_core.gpu_health.xid import parse_kernel_line, pci_key

SAME_WITHIN_S = 10.0
"""The two sources report one event within seconds of each other; equal XIDs further apart are two events."""
KEPT = 256


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An XID of a GPU, by wall clock."""

    uuid: str
    code: int
    at: float
    source: str


@dataclass
class XidLog:
    """Bounded log of XIDs. `on_event` is called once for each event, whichever source tells it first."""

    on_event: Callable[[XidEvent], None]
    _events: list[XidEvent] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def add(self, uuid: str, code: int, at: float, source: str) -> bool:
        """Log an XID; false when the other source already told it."""
        with self._lock:
            for event in reversed(self._events):
                if at - event.at > SAME_WITHIN_S:
                    break
                if (event.uuid, event.code) == (uuid, code) and event.source != source:
                    return False
            event = XidEvent(uuid, code, at, source)
            self._events = [*self._events[-(KEPT - 1) :], event]
        self.on_event(event)
        return True

    def add_kernel_line(self, line: str, uuid_by_pci: Mapping[str, str], at: float) -> bool:
        """Log the XID of a kernel log line; false when there is none or its GPU is unknown.

        `uuid_by_pci` is keyed by `pci_key`.
        """
        found = parse_kernel_line(line)
        uuid = uuid_by_pci.get(found[0]) if found else None
        return found is not None and uuid is not None and self.add(uuid, found[1], at, "kernel")

    def since(self, uuid: str, start: float) -> tuple[int, ...]:
        """Codes of a GPU's XIDs at or after `start`, oldest first."""
        with self._lock:
            return tuple(e.code for e in self._events if e.uuid == uuid and e.at >= start)


def by_pci(devices: Mapping[str, str]) -> dict[str, str]:
    """uuid -> PCI address as PCI key -> uuid."""
    return {pci_key(pci): uuid for uuid, pci in devices.items() if pci}
