"""Memory of a model on GPUs: weights, activations, overheads, KV pool and what it serves, each number derived."""

from tonnage_core.memory.plan import MemoryPlan, plan_memory
from tonnage_core.memory.report import memory_report, report_of
from tonnage_core.memory.request import Adapters, MemoryRequest, RefusedError, RequestError, Speculation
from tonnage_core.memory.stages import StageMemory

__all__ = [
    "Adapters",
    "MemoryPlan",
    "MemoryRequest",
    "RefusedError",
    "RequestError",
    "Speculation",
    "StageMemory",
    "memory_report",
    "plan_memory",
    "report_of",
]
