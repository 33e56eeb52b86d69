"""Adapters: GPU slots over a host cache, both least recently used, with the time their misses cost a step."""

from collections import OrderedDict
from collections.abc import Collection


class AdapterSlots:
    """Which adapters sit in GPU slots and in host memory.

    A batch never holds more adapters than `slots` (the scheduler sees to it), so there is always a slot whose adapter
    the batch does not use. Loads happen before the step that needs them, one after another, as vLLM's workers do.
    """

    def __init__(self, slots: int, host_slots: int, load_s: float, fetch_s: float) -> None:
        self._slots = slots
        self._host_slots = max(host_slots, slots)
        self._load_s = load_s
        self._fetch_s = fetch_s
        self._on_gpu: OrderedDict[str, None] = OrderedDict()
        self._on_host: OrderedDict[str, None] = OrderedDict()
        self.loads = 0
        self.fetches = 0

    @property
    def resident(self) -> tuple[str, ...]:
        """Adapters in GPU slots, least recently used first."""
        return tuple(self._on_gpu)

    def use(self, adapters: Collection[str]) -> float:
        """Make room for a batch's adapters and mark them used; returns the seconds that loading took."""
        for adapter in adapters:
            if adapter in self._on_gpu:
                self._on_gpu.move_to_end(adapter)
                self._on_host.move_to_end(adapter)
        return sum(self._load(adapter, adapters) for adapter in adapters if adapter not in self._on_gpu)

    def _load(self, adapter: str, needed: Collection[str]) -> float:
        seconds = self._load_s
        if adapter not in self._on_host:
            self.fetches += 1
            seconds += self._fetch_s
        self._on_host[adapter] = None
        self._on_host.move_to_end(adapter)
        if len(self._on_gpu) >= self._slots:
            del self._on_gpu[next(held for held in self._on_gpu if held not in needed)]
        self._on_gpu[adapter] = None
        self.loads += 1
        self._drop_from_host()
        return seconds

    def _drop_from_host(self) -> None:
        while len(self._on_host) > self._host_slots:
            del self._on_host[next(held for held in self._on_host if held not in self._on_gpu)]
