"""The engine's step times with the slow fault on top."""

from tonnage_core.engine.batch import Batch, StepClock


class AdjustableStepClock:
    """Another clock's times, times `factor`."""

    def __init__(self, inner: StepClock) -> None:
        self._inner = inner
        self.factor = 1.0

    def seconds(self, batch: Batch) -> float:
        """Time of one iteration, seconds."""
        return self._inner.seconds(batch) * self.factor

    def swap_seconds(self, tokens: int) -> float:
        """Time to move the KV of `tokens` tokens between host and GPU, one way, seconds."""
        return self._inner.swap_seconds(tokens) * self.factor
