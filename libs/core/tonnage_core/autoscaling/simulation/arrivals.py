"""A trace at a multiple of its rate, over its own duration.

Each request stands for `factor` requests (the fraction by chance) that come at random before the trace's next distinct
arrival, so that the rate's course over time stays and only its height changes. Compressing the time axis instead would
make an hour's swings shorter than a cold start.
"""

from collections.abc import Iterator, Sequence
from math import floor
from typing import TYPE_CHECKING

from tonnage_core.autoscaling.simulation.lean_engine import Job
from tonnage_core.errors import BadInputError
from tonnage_core.traces import TraceRequest

if TYPE_CHECKING:
    from random import Random


def multiplied(requests: Sequence[TraceRequest], factor: float, rng: "Random", max_input: int = 0) -> list[Job]:
    """The jobs in order of arrival; prompts are cut to `max_input` tokens (0: not at all).

    Raises `BadInputError` for a factor that is not above 0.
    """
    if not 0 < factor < 1e6:
        raise BadInputError(f"rate factor {factor:g}: give a number above 0")
    jobs: list[Job] = []
    for request, gap in _with_gaps(requests):
        copies = floor(factor) + (rng.random() < factor - floor(factor))
        prompt = min(request.input_length, max_input) if max_input else request.input_length
        for _ in range(copies):
            jobs.append(Job(request.arrival_s + gap * rng.random(), max(1, prompt), max(1, request.output_length)))
    jobs.sort(key=lambda job: job.arrival_s)
    return jobs


def _with_gaps(requests: Sequence[TraceRequest]) -> Iterator[tuple[TraceRequest, float]]:
    """Each request with the seconds to the next distinct arrival; the last ones share the mean gap."""
    if not requests:
        return
    span = requests[-1].arrival_s - requests[0].arrival_s
    following = requests[-1].arrival_s + span / len(requests)
    gaps: list[float] = []
    later = following
    for index in range(len(requests) - 1, -1, -1):
        here = requests[index].arrival_s
        gaps.append(later - here)
        if index and requests[index - 1].arrival_s < here:
            later = here
    yield from zip(requests, reversed(gaps), strict=True)
