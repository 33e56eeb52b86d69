"""CRC32C of whole chunks where they have arrived: in the device's memory, by the device.

The processor then only reads. The kernel runs once, after the last copy, over every chunk that lies in one piece, and
sees what a check of host memory cannot: damage on the way to the device.
"""

import ctypes
import logging
from functools import cache
from importlib import resources

import torch

from tonnage_coldstart.errors import DeviceMemoryError
from tonnage_core.coldstart.crc_operator import after, inverted, lookup, over_bytes

log = logging.getLogger("tonnage.coldstart.loader")
KERNEL = "crc32c_chunks"
BLOCKS, THREADS = 32, 256
LANES = BLOCKS * THREADS
"""Lanes that share a chunk."""
WORD_BYTES = 4
UNIT_BYTES = LANES * WORD_BYTES
"""A chunk must be a whole number of these."""
MAX_ROWS = 65_535


class DeviceCheck:
    """The chunks of one load on the device of `stream`."""

    def __init__(
        self, driver: ctypes.CDLL, function: ctypes.c_void_p, stream: torch.cuda.Stream, chunk_bytes: int
    ) -> None:
        self._driver = driver
        self._function = function
        self._stream = stream
        self._chunk_bytes = chunk_bytes
        self._inversion = inverted(0, chunk_bytes)
        self._held: list[tuple[int, int, int]] = []

    def add(self, file: int, chunk: int, address: int) -> None:
        """Chunk number `chunk` of a file will lie at `address` of the device once the stream gets there."""
        self._held.append((file, chunk, address))

    def checksums(self) -> list[tuple[int, int, int]]:
        """(file, chunk, CRC32C) of all that was added; waits for the stream. Raises `DeviceMemoryError`."""
        found: list[tuple[int, int, int]] = []
        for first in range(0, len(self._held), MAX_ROWS):
            rows = self._held[first : first + MAX_ROWS]
            remainders = self._remainders([address for _, _, address in rows])
            for (file, chunk, _), remainder in zip(rows, remainders, strict=True):
                found.append((file, chunk, (remainder & 0xFFFFFFFF) ^ self._inversion))
        return found

    def _remainders(self, addresses: list[int]) -> list[int]:
        device = self._stream.device
        with torch.cuda.stream(self._stream):
            chunks = torch.tensor(addresses, dtype=torch.int64).to(device)
            step, powers = (_words(words).to(device) for words in operators())
            remainders = torch.zeros(len(addresses), dtype=torch.int32, device=device)
            turns = ctypes.c_uint(self._chunk_bytes // UNIT_BYTES)
            held = [ctypes.c_uint64(one.data_ptr()) for one in (chunks, step, powers, remainders)]
            values = (*held[:3], turns, held[3])
            arguments = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
            grid, block = (BLOCKS, len(addresses), 1), (THREADS, 1, 1)
            stream = ctypes.c_void_p(self._stream.cuda_stream)
            code = self._driver.cuLaunchKernel(self._function, *grid, *block, 0, stream, arguments, None)
            if code:
                raise DeviceMemoryError(f"the CUDA driver refused to check the weights (error {code})")
            found: list[int] = remainders.tolist()
        return found


def device_check(stream: "torch.cuda.Stream | None", chunk_bytes: int) -> DeviceCheck | None:
    """A check on `stream`'s device, or None where the processor has to do it."""
    if stream is None or chunk_bytes % UNIT_BYTES:
        return None
    try:
        driver = _driver()
    except OSError as error:
        log.info("checking on the processor", extra={"error": str(error)[:200]})
        return None
    with torch.cuda.device(stream.device):
        stream.query()  # a first call of the runtime binds its context to the thread
        function = _kernel(stream.device.index)
    return None if function is None else DeviceCheck(driver, function, stream, chunk_bytes)


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@cache
def _kernel(device: int | None) -> ctypes.c_void_p | None:
    """The kernel in the context of `device`, which is this thread's; None where the driver does not take it."""
    text = resources.files(__package__).joinpath(f"{KERNEL}.ptx").read_bytes() + b"\0"
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    code = _driver().cuModuleLoadData(ctypes.byref(module), text)
    code = code or _driver().cuModuleGetFunction(ctypes.byref(function), module, KERNEL.encode())
    if code:
        log.warning("the driver does not take the check's kernel", extra={"device": device, "code": code})
        return None
    return function


@cache
def operators() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The kernel's tables: a step over all lanes' words, and the operators over 1, 2, 4 ... `LANES` words."""
    powers = [over_bytes(WORD_BYTES)]
    while len(powers) < LANES.bit_length():
        powers.append(after(powers[-1], powers[-1]))
    return tuple(lookup(powers[-1])), tuple(column for power in powers for column in power)


def _words(words: tuple[int, ...]) -> torch.Tensor:
    """32-bit words as torch's signed ones."""
    return torch.tensor(words, dtype=torch.int64).to(torch.int32)
