"""Predicted against seen: the time per output token of each pool's live traffic beside what the time model says of it.

The question asked of the model is the traffic's own: its mean lengths, cached prefix and requests in flight a replica,
on the pool's model and GPU. Pools whose policy names no GPU have no prediction.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tonnage_core.autoscaling.live_tokens import LiveTokens, SeenTokens, follow, seen_tokens
from tonnage_core.autoscaling.observation import Observation
from tonnage_core.errors import BadInputError
from tonnage_core.hardware.spec import GpuSpec
from tonnage_core.models.shape import ModelShape
from tonnage_core.parallelism import Layout
from tonnage_core.prediction import PredictRequest, predict
from tonnage_planner.settings import PolicySettings
from tonnage_runtime.catalogue import load_gpu, load_model
from tonnage_runtime.errors import SettingsError

PREDICT_EVERY_S = 10.0
"""A prediction costs some milliseconds a pool."""
log = logging.getLogger("tonnage.planner")


@dataclass(frozen=True, slots=True)
class Drift:
    """Seconds per output token as seen lately and as predicted for the same load; None where not known."""

    seen_s: float | None = None
    predicted_s: float | None = None

    @property
    def ratio(self) -> float | None:
        """Seen over predicted: 2 is twice as slow as the planner believes."""
        return None if self.seen_s is None or not self.predicted_s else self.seen_s / self.predicted_s


class DriftWatch:
    """Follows the traffic of every pool at each look, and asks the model every `PREDICT_EVERY_S`."""

    def __init__(self) -> None:
        self._live: dict[str, LiveTokens] = {}
        self._asked_s: dict[str, float] = {}
        self._unanswered: set[str] = set()
        self.by_pool: dict[str, Drift] = {}

    def look(self, pool: str, seen: Sequence[Observation], now_s: float, given: PolicySettings) -> None:
        """One more look at a pool."""
        live = self._live[pool] = follow(self._live.get(pool, LiveTokens()), seen, now_s)
        if now_s - self._asked_s.get(pool, -PREDICT_EVERY_S) < PREDICT_EVERY_S:
            return
        self._asked_s[pool] = now_s
        traffic = seen_tokens(live)
        if traffic is None:
            self.by_pool[pool] = Drift()
            self._asked_s.pop(pool)
        else:
            self.by_pool[pool] = Drift(traffic.token_s, self._predicted_s(pool, traffic, given))

    def keep(self, pools: Sequence[str]) -> None:
        """Forget every other pool."""
        for known in (self._live, self._asked_s, self.by_pool):
            for pool in set(known) - set(pools):
                known.pop(pool)

    def _predicted_s(self, pool: str, traffic: SeenTokens, given: PolicySettings) -> float | None:
        if given.gpu is None:
            return None
        try:
            shape, gpu = _hardware(given.model or pool, given.gpu)
            request = PredictRequest(
                shape,
                gpu,
                traffic.isl,
                traffic.osl,
                traffic.concurrency,
                prefix=traffic.prefix,
                layout=Layout(given.tp),
                max_num_batched_tokens=given.max_num_batched_tokens,
            )
            return predict(request).tpot_ms.value / 1e3
        except (BadInputError, SettingsError) as error:
            if pool not in self._unanswered:
                self._unanswered.add(pool)
                log.warning("no prediction of the pool's traffic", extra={"pool": pool, "error": str(error)})
            return None


@lru_cache(maxsize=64)
def _hardware(model: str, gpu: str) -> tuple[ModelShape, GpuSpec]:
    return load_model(model), load_gpu(gpu)
