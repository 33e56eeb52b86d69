"""What `tonnage autoscale` says beside the runs: what warm replicas cost and save, which GPU classes carry the load."""

from typing import Any

from tonnage_cli.output import print_table
from tonnage_core.autoscaling.capacity import replica_cost
from tonnage_core.autoscaling.families import ClassBill, Member, bill
from tonnage_core.autoscaling.policy import ReplicaCapacity
from tonnage_core.autoscaling.simulation.comparison import Outcome
from tonnage_core.autoscaling.warm import WarmTable
from tonnage_core.engine.defaults import engine_config_for
from tonnage_core.engine.step_time import step_time_for
from tonnage_core.errors import BadInputError
from tonnage_core.models import ModelShape
from tonnage_runtime.catalogue import load_gpu, load_model


def advice_of(ours: Outcome | None, given: dict[str, Any]) -> dict[str, Any]:
    """The fields `warm` and `classes` of the report; null where they were not asked for or are not known."""
    if ours is None:
        return {"warm": None, "classes": None}
    found = bill(ours.decisions, members_of(given)) if given["classes"] else None
    return {
        "warm": None if ours.warm is None else _warm_fields(ours.warm),
        "classes": None if found is None else _class_fields(found),
    }


def members_of(given: dict[str, Any]) -> list[Member]:
    """--gpu and the classes beside it; raises `BadInputError` for one that nobody knows or that stands twice."""
    shape, budget = load_model(given["model"]), given["max_num_batched_tokens"]
    asked = [(given["gpu"], given["usd_per_hour"], given["max_replicas"]), *given["classes"]]
    if len({name for name, _, _ in asked}) != len(asked):
        raise BadInputError("--gpu-class: a GPU stands twice (--gpu is the first class)")
    return [Member(name, usd, most, _capacity(shape, name, budget, given)) for name, usd, most in asked]


def _capacity(shape: ModelShape, name: str, budget: int, given: dict[str, Any]) -> ReplicaCapacity:
    """What a replica on one GPU can do; raises `BadInputError` when the model leaves no room for KV there."""
    gpu = load_gpu(name)
    engine_config_for(shape, gpu, max_num_batched_tokens=budget)
    cost = replica_cost(step_time_for(shape, gpu), budget)
    return ReplicaCapacity(cost, given["slo_ttft_ms"] / 1e3, given["slo_tpot_ms"] / 1e3)


def _warm_fields(table: WarmTable) -> dict[str, Any]:
    advice = table.advice
    return {
        "replicas": advice.replicas if advice else None,
        "idle_usd_per_hour": advice.idle_usd_per_hour if advice else None,
        "saved_misses_per_hour": round(advice.saved_misses_per_hour, 2) if advice else None,
        "hours": round(table.hours, 3),
        "choices": [
            {
                "replicas": one.replicas,
                "idle_usd_per_hour": one.idle_usd_per_hour,
                "late_requests_per_hour": round(one.misses_per_hour, 2),
            }
            for one in table.choices
        ],
    }


def _class_fields(found: ClassBill) -> dict[str, Any]:
    return {
        "replica_hours": {name: round(hours, 3) for name, hours in found.replica_hours.items()},
        "peak_replicas": dict(found.peak),
        "usd": round(found.usd, 2),
        "usd_first_class_only": round(found.usd_first_only, 2),
        "unplaced_load_hours": round(found.short_hours, 3),
    }


def show_advice(document: dict[str, Any]) -> None:
    """Both as tables."""
    warm, classes = document["warm"], document["classes"]
    if warm is not None:
        advice = (
            "no price of a replica and of a late request" if warm["replicas"] is None else f"{warm['replicas']} pay"
        )
        title = f"Warm replicas, from {warm['hours']:.2f} h of forecasts: {advice}"
        print_table(title, ["warm", "idle $/h", "late/h"], [_choice(one) for one in warm["choices"]])
    if classes is not None:
        rows = [[name, hours, classes["peak_replicas"][name]] for name, hours in classes["replica_hours"].items()]
        title = f"GPU classes: {classes['usd']} $ against {classes['usd_first_class_only']} $ of the first alone"
        print_table(title, ["class", "replica-hours", "peak"], rows)


def _choice(one: dict[str, Any]) -> list[Any]:
    idle = one["idle_usd_per_hour"]
    return [one["replicas"], "-" if idle is None else idle, one["late_requests_per_hour"]]
