"""The autoscalers that clusters run today, by their published rules, each with the two thresholds a user tunes.

- `hpa_queue`, `hpa_kv`: Kubernetes' HorizontalPodAutoscaler on an external metric with an average value: sum over
  target, 10 % tolerance, at most double or four more every 15 s, down to the largest recommendation of a window
  (kubernetes.io, "Horizontal Pod Autoscaling"). Thresholds: the target a replica and the window down.
- `kpa`: Knative's concurrency autoscaler: mean in flight over 60 s over the target; when the mean of 6 s asks for more
  than the panic threshold times what serves, that counts and nothing goes down for a stable window (knative.dev).
- `saturation`: the llm-d workload-variant autoscaler's rule: a replica is saturated above a KV or queue threshold; one
  more when the mean spare of the others is below a tenth of the cache or three requests, one fewer when the load fits
  without it, nothing while a replica starts (llm-d/llm-d-autoscaling).
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tonnage_core.autoscaling.simulation.view import PoolView

TOLERANCE = 0.1


class HpaPolicy:
    """An HPA on the sum of `metric` with `target` a replica."""

    interval_s = 15.0

    def __init__(self, metric: Callable[[PoolView], float], target: float, down_window_s: float) -> None:
        self._metric = metric
        self._target = target
        self._window_s = down_window_s
        self._recommended: deque[tuple[float, int]] = deque()

    def target(self, view: PoolView) -> int:
        """Replicas after tolerance, rate limit and window."""
        current = max(1, view.wanted)
        if not self._recommended:
            # Kubernetes takes what it finds for its first recommendation: nothing goes down before the window is over.
            self._recommended.append((view.now_s, current))
        usage = self._metric(view) / (self._target * current)
        wanted = current if abs(usage - 1) <= TOLERANCE else math.ceil(usage * current - 1e-9)
        self._recommended.append((view.now_s, wanted))
        while self._recommended[0][0] < view.now_s - self._window_s:
            self._recommended.popleft()
        if wanted < current:
            return min(current, max(count for _, count in self._recommended))
        return min(wanted, max(2 * current, current + 4))


def hpa_queue(target_waiting: float, down_window_s: float) -> HpaPolicy:
    """An HPA on requests waiting."""
    return HpaPolicy(lambda view: view.waiting, target_waiting, down_window_s)


def hpa_kv(target_kv: float, down_window_s: float) -> HpaPolicy:
    """An HPA on KV usage, summed over replicas."""
    return HpaPolicy(lambda view: sum(replica.kv_usage for replica in view.serving), target_kv, down_window_s)


class KpaPolicy:
    """Knative's autoscaler on requests in flight."""

    interval_s = 2.0
    stable_s = 60.0
    panic_s = 6.0

    def __init__(self, target_in_flight: float, panic_threshold: float) -> None:
        self._target = target_in_flight
        self._threshold = panic_threshold
        self._seen: deque[tuple[float, int]] = deque()
        self._panic_until_s = -1.0
        self._began_s: float | None = None
        self._panic_target = 0

    def target(self, view: PoolView) -> int:
        """Replicas from the stable window, or from the panic window while it panics."""
        now = view.now_s
        self._began_s = now if self._began_s is None else self._began_s
        self._seen.append((now, view.in_flight))
        while self._seen[0][0] < now - self.stable_s:
            self._seen.popleft()
        ready = max(1, len(view.serving))
        stable = math.ceil(self._mean(now - self.stable_s) / self._target)
        panic = math.ceil(self._mean(now - self.panic_s) / self._target)
        if panic >= self._threshold * ready:
            self._panic_until_s = now + self.stable_s
        if now < self._panic_until_s:
            self._panic_target = max(self._panic_target, panic, view.wanted)
            return self._panic_target
        self._panic_target = 0
        # A window that is not full yet shows the requests of an empty fleet: it may only ask for more.
        least = view.wanted if now - self._began_s < self.stable_s else view.wanted // 2
        return max(stable, least)

    def _mean(self, since_s: float) -> float:
        values = [value for at, value in self._seen if at >= since_s]
        return sum(values) / len(values)


SPARE_KV, SPARE_QUEUE = 0.1, 3.0


@dataclass(frozen=True, slots=True)
class SaturationPolicy:
    """One up or down at a time by spare capacity."""

    kv_threshold: float
    queue_threshold: float
    interval_s: float = 30.0

    def target(self, view: PoolView) -> int:
        """One more, one fewer, or as many."""
        if view.starting:
            return view.wanted
        free = [
            replica
            for replica in view.serving
            if replica.kv_usage < self.kv_threshold and replica.waiting < self.queue_threshold
        ]
        if not free:
            return view.wanted + 1
        kv = sum(self.kv_threshold - replica.kv_usage for replica in free) / len(free)
        queue = sum(self.queue_threshold - replica.waiting for replica in free) / len(free)
        if kv < SPARE_KV or queue < min(SPARE_QUEUE, self.queue_threshold / 2):
            return view.wanted + 1
        return view.wanted - self._fits_without_one(view)

    def _fits_without_one(self, view: PoolView) -> bool:
        serving = len(view.serving)
        if serving < 2:
            return False
        grown = serving / (serving - 1)
        kv = grown * sum(replica.kv_usage for replica in view.serving) / serving
        queue = grown * sum(replica.waiting for replica in view.serving) / serving
        return self.kv_threshold - kv >= SPARE_KV and self.queue_threshold - queue >= SPARE_QUEUE


GRIDS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "hpa_queue": ((0.02, 0.05, 0.1, 0.3, 1.0, 3.0), (300.0, 600.0)),
    "hpa_kv": ((0.06, 0.09, 0.12, 0.14, 0.16, 0.2, 0.26, 0.35, 0.45), (120.0, 300.0)),
    "kpa": ((5.0, 6.0, 8.0, 12.0, 16.0, 25.0, 35.0, 45.0), (2.0, 10.0)),
    "saturation": ((0.18, 0.25, 0.35, 0.5), (2.0, 3.0, 5.0)),
}
"""Values of the two thresholds each baseline is tuned over."""

MAKERS: dict[str, Callable[[float, float], HpaPolicy | KpaPolicy | SaturationPolicy]] = {
    "hpa_queue": hpa_queue,
    "hpa_kv": hpa_kv,
    "kpa": KpaPolicy,
    "saturation": SaturationPolicy,
}
