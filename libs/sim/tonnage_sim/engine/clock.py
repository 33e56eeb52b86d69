"""Engine time: wall time since the start, times a scale."""

from tonnage_core.errors import BadInputError
from tonnage_runtime.clock import Clock


class EngineClock:
    """Engine seconds; at scale 4 the engine lives four seconds in one."""

    def __init__(self, clock: Clock, scale: float) -> None:
        if not scale > 0:
            raise BadInputError(f"time scale {scale} is not above 0: give how many engine seconds pass in one second")
        self._clock = clock
        self._origin_s = clock.monotonic()
        self.scale = scale

    def now(self) -> float:
        """Engine seconds since the start."""
        return (self._clock.monotonic() - self._origin_s) * self.scale

    def wall(self) -> float:
        """Seconds since the Unix epoch."""
        return self._clock.wall()

    def wall_until(self, engine_s: float) -> float:
        """Wall seconds from now to an engine time; negative when it has passed."""
        return (engine_s - self.now()) / self.scale
