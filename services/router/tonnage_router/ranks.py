"""Data-parallel ranks: each is an endpoint of its own, with its own cache, load and queue, behind one URL."""

from collections.abc import Iterable

from tonnage_router.fleet import endpoint_id
from tonnage_router.settings import EndpointSpec

HEADER = b"x-data-parallel-rank"
"""The header by which vLLM is told the rank."""


def by_rank(specs: Iterable[EndpointSpec]) -> list[EndpointSpec]:
    """`specs` with those of several ranks taken apart: `<id>-dp0` and so on."""
    found: list[EndpointSpec] = []
    for spec in specs:
        if spec.data_parallel_size == 1 or spec.data_parallel_rank is not None:
            found.append(spec)
            continue
        name = endpoint_id(spec)
        for rank in range(spec.data_parallel_size):
            found.append(spec.model_copy(update={"id": f"{name}-dp{rank}", "data_parallel_rank": rank}))
    return found


def of_rank(page: bytes, rank: int | None) -> bytes:
    """The lines of a metrics page that are about one rank (vLLM's label `engine`), or about no rank in particular."""
    if rank is None:
        return page
    own = b'engine="%d"' % rank
    return b"\n".join(line for line in page.split(b"\n") if own in line or b'engine="' not in line)
