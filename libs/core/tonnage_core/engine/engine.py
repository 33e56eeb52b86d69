"""The engine: submit, abort, step, and run ahead between events."""

from tonnage_core.engine.batch import StepClock
from tonnage_core.engine.types import EngineConfig, EngineRequest, EngineStats, RequestTimeline, StepResult


class Engine:
    """One simulated engine. Times are seconds on the caller's clock and must not go backwards.

    `model` tags the block hashes (as `prefix_index.block_hash.seed_hash` does), `seed` the step jitter.
    """

    def __init__(self, config: EngineConfig, step_time: StepClock, *, model: str = "", seed: int = 0) -> None:
        self.config = config
        self.step_time = step_time
        self.model = model
        self.seed = seed

    def submit(self, request: EngineRequest, now: float) -> None:
        """Queue a request; raises RequestTooLongError, DuplicateRequestError or BadRequestError."""
        raise NotImplementedError

    def abort(self, request_id: str, now: float) -> bool:
        """Drop a request and free what it holds; False when the engine does not know it (any more)."""
        raise NotImplementedError

    def step(self, now: float) -> StepResult | None:
        """Run one iteration that starts at `now`; None when there is nothing to run."""
        raise NotImplementedError

    def next_event(self) -> float | None:
        """When the engine will next start a step of its own accord; None when it is idle."""
        raise NotImplementedError

    def run_until(self, until: float) -> list[RequestTimeline]:
        """Run every step that starts before `until`; returns the requests that finished, in order."""
        raise NotImplementedError

    @property
    def stats(self) -> EngineStats:
        """A snapshot of queues, memory and counters."""
        raise NotImplementedError
