"""The ring: memory that files are read into; allocated once and pinned, so that the device fetches at full speed."""

import ctypes
import logging
import threading
from collections import deque
from collections.abc import Callable

import torch

from tonnage_coldstart.errors import DeviceMemoryError
from tonnage_coldstart.loader.host_copy import aligned_memory

log = logging.getLogger("tonnage.coldstart.loader")

new_event: Callable[[], torch.cuda.Event] = torch.cuda.Event


class Slab:
    """A power of two of bytes in host memory, page-aligned as reads past the page cache need it."""

    def __init__(self, size_bytes: int, *, pinned: bool) -> None:
        if pinned:  # page-aligned by the driver; a byte more would cost another power of two
            self.tensor = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        else:
            self.tensor = aligned_memory(size_bytes)
        self.address = self.tensor.data_ptr()
        self.view = bytes_of(self.tensor)
        self.busy: torch.cuda.Event | None = None
        self._event: torch.cuda.Event | None = None

    def sent(self, stream: torch.cuda.Stream) -> None:
        """The device takes what is in it, once `stream` comes to it."""
        if self._event is None:
            self._event = new_event()
        self._event.record(stream)
        self.busy = self._event

    def wait(self) -> None:
        """Until the device has taken what was in it."""
        if self.busy is not None:
            if not self.busy.query():  # type: ignore[no-untyped-call]  # does not give up the interpreter's lock
                self.busy.synchronize()
            self.busy = None


class Ring:
    """Slabs that all readers of a load share, at least one a reader; kept between loads.

    More slabs than readers are what the device may be busy with. Few enough that all fit into the processor's last
    cache: what a reader has just written is then fetched by the device, and checked, without going to memory.
    """

    def __init__(self, readers: int, spare: int, slab_bytes: int, *, pinned: bool) -> None:
        self.slab_bytes = slab_bytes
        self.readers = readers
        self.asked_slabs = readers + spare
        self.asked_pinned = self.pinned = pinned
        self._slabs: list[Slab] = []
        self._allocate(readers, spare)
        self._free = deque(self._slabs)

    @property
    def size_bytes(self) -> int:
        """Bytes of all slabs."""
        return self.slab_bytes * len(self._slabs)

    def take(self) -> Slab:
        """The slab given back longest ago, once the device has taken what was in it; a reader holds one at a time."""
        slab = self._free.popleft()
        slab.wait()
        return slab

    def give(self, slab: Slab) -> None:
        """Let any reader have it."""
        self._free.append(slab)

    def restock(self) -> None:
        """Have every slab again, those too that failed readers held; the device must be done with them."""
        self._free = deque(self._slabs)

    def _allocate(self, readers: int, spare: int) -> None:
        """As asked; else one slab a reader; else pageable, which is slower and said so."""
        for count, pinned in ((readers + spare, self.pinned), (readers, self.pinned), (readers, False)):
            try:
                self._slabs = [Slab(self.slab_bytes, pinned=pinned) for _ in range(count)]
            except RuntimeError as error:
                log.warning(
                    "no memory for the ring", extra={"slabs": count, "pinned": pinned, "error": str(error)[:160]}
                )
                continue
            self.pinned = pinned
            return
        raise DeviceMemoryError(f"no host memory for {readers} slabs of {self.slab_bytes} bytes: use fewer threads")


_kept: dict[tuple[int, bool], Ring] = {}
"""One ring for each size of slab and kind of memory asked for: the largest."""

_lock = threading.Lock()


def take_ring(readers: int, spare: int, slab_bytes: int, *, pinned: bool) -> Ring:
    """A ring with room for that many: one kept from an earlier load, or a new one, a smaller one let go first."""
    with _lock:
        ring = _kept.pop((slab_bytes, pinned), None)
    if ring is not None and ring.readers >= readers and ring.asked_slabs >= readers + spare:
        return ring
    del ring
    return Ring(readers, spare, slab_bytes, pinned=pinned)


def keep_ring(ring: Ring) -> None:
    """Keep a ring for the next load, unless a larger one of its kind is kept."""
    ring.restock()
    key = ring.slab_bytes, ring.asked_pinned
    with _lock:
        if key not in _kept or _kept[key].asked_slabs < ring.asked_slabs:
            _kept[key] = ring


def release_rings() -> None:
    """Give the kept rings back to the system."""
    with _lock:
        _kept.clear()


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous host tensor, without a copy; valid while the tensor lives."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * size).from_address(tensor.data_ptr())).cast("B")
