"""What the memory-stream probes share: sizes far above the L2 cache that fit the device."""

from tonnage_gpu_agent.probes.probe import GIB, MIB, Bench


def stream_sizes(bench: Bench, buffers: int) -> list[int]:
    """Bytes of one buffer, smallest first: 512 MiB and 4 GiB, or what fits `buffers` times into half the free memory.

    The quick suite takes the largest only: that is the ceiling.
    """
    if bench.rehearsal:
        return [64 * 1024]
    largest = min(4 * GIB, bench.free_bytes() // (2 * buffers) // MIB * MIB)
    sizes = [size for size in (512 * MIB, largest) if 8 * bench.l2_bytes <= size <= largest]
    return sorted(set(sizes))[-1:] if bench.quick else sorted(set(sizes))
