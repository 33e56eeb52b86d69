"""What the service and its workers need of the outside."""

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Ref:
    """One attempt of one run of a job."""

    job: str
    number: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.job}/{self.number}/{self.attempt}"


@dataclass(frozen=True, slots=True)
class Work:
    """A claimed run: what `bench_step` is asked, how long the claim holds, how long the run may take (seconds)."""

    question: dict[str, Any]
    lease_s: float
    limit_s: float


class StepQueue(Protocol):
    """Where runs are put for workers. Putting one is a hint: it may be lost or arrive twice."""

    async def put(self, ref: Ref) -> None:
        """Offer a run. Raises `QueueError` when the queue cannot be reached."""
        ...

    async def close(self) -> None:
        """Let go."""
        ...


class Desk(Protocol):
    """Where a worker gets its run and brings its result. Each call may be repeated. Raises `DeskError`."""

    async def claim(self, ref: Ref, worker: str) -> Work | None:
        """The run; None when there is nothing to do: made, being made, cancelled, or another attempt is due."""
        ...

    async def beat(self, ref: Ref, worker: str, elapsed_s: float) -> bool:
        """Still at it; False: stop."""
        ...

    async def finish(self, ref: Ref, worker: str, result: dict[str, Any]) -> bool:
        """The result; False when it is not wanted any more."""
        ...


class StepRunner(Protocol):
    """Makes runs, and knows which cannot be made."""

    async def run(self, question: dict[str, Any]) -> dict[str, Any]:
        """The result, an `error` among them; ends the load when cancelled."""
        ...

    async def refused(self, question: dict[str, Any]) -> str | None:
        """Why a request's runs (`request`, `asks`, `longest_s`) cannot be made; None when nothing is known against."""
        ...
