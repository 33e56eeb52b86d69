"""Units. GiB is 2^30 bytes, GB is 10^9 bytes, `gbps` is GB/s; times are seconds unless a name says `ms` or `us`."""

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


def gib(size_bytes: float) -> float:
    """Bytes as GiB."""
    return size_bytes / GIB
