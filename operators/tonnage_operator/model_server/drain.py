"""The times of a pod's end. They must fit into each other strictly, else the kubelet cuts streams that had time left.

t=0 the pod is marked as going: routers that watch it send nothing new, and preStop waits for those that have not seen
it yet. Then SIGTERM: the engine takes nothing new and lets running requests end for its own time-out. Then the process
ends, which takes a moment too. The kubelet kills at the grace period, so that is longer than the sum (kserve#5485; the
engine's own default of 0 aborts everything at once, vllm#43208).
"""

from dataclasses import dataclass

from tonnage_operator.model_server.crd import Drain
from tonnage_operator.reading import SpecError

EXIT_S = 15
"""For the engine's processes to end after their time-out."""


@dataclass(frozen=True, slots=True)
class DrainTimes:
    """Seconds. `pre_stop_s` + `engine_s` < `grace_s`, strictly, with `EXIT_S` between."""

    pre_stop_s: int
    engine_s: int
    grace_s: int

    def check(self) -> "DrainTimes":
        """Itself; raises `SpecError` when the engine could be killed before its own time-out."""
        if min(self.pre_stop_s, self.engine_s) < 1 or self.pre_stop_s + self.engine_s + EXIT_S > self.grace_s:
            raise SpecError(
                f"drain: preStop {self.pre_stop_s} s and the engine's time-out {self.engine_s} s must end {EXIT_S} s "
                f"before the grace period of {self.grace_s} s"
            )
        return self


def drain_times(drain: Drain) -> DrainTimes:
    """The times that give running requests `drain.timeout_s` whole."""
    return DrainTimes(drain.unroute_s, drain.timeout_s, drain.unroute_s + drain.timeout_s + EXIT_S).check()
