"""What one replica of a pool can carry, from its model and GPU in the catalogue."""

from functools import lru_cache

from tonnage_core.autoscaling.capacity import ReplicaCost, replica_cost
from tonnage_core.autoscaling.policy import ReplicaCapacity
from tonnage_core.engine.defaults import batch_limits
from tonnage_core.engine.step_time import step_time_for
from tonnage_core.errors import BadInputError
from tonnage_planner.settings import PolicySettings
from tonnage_runtime.catalogue import load_gpu, load_model
from tonnage_runtime.errors import SettingsError


def capacity_of(pool: str, given: PolicySettings) -> ReplicaCapacity | None:
    """The capacity, or None when no GPU is named; raises `SettingsError` for a model or GPU nobody knows."""
    if given.gpu is None:
        return None
    try:
        cost = _cost(given.model or pool, given.gpu, given.tp, given.max_num_batched_tokens)
    except BadInputError as error:
        raise SettingsError(f"pool {pool}: {error}") from error
    tpot_s = None if given.slo_tpot_ms is None else given.slo_tpot_ms / 1e3
    return ReplicaCapacity(cost, given.slo_ttft_ms / 1e3, tpot_s)


@lru_cache(maxsize=64)
def _cost(model: str, gpu_name: str, tp: int, budget: int | None) -> ReplicaCost:
    shape, gpu = load_model(model), load_gpu(gpu_name)
    return replica_cost(step_time_for(shape, gpu, tp=tp), budget or batch_limits(gpu)[0])
