"""The KV cache: pages of each layer, groups, and what a pool holds, by engine release."""

from tonnage_core.kv_cache.capacity import Capacity, SequenceRules, pool_capacity
from tonnage_core.kv_cache.groups import Grouping, group_layers
from tonnage_core.kv_cache.specs import cached_layers
from tonnage_core.kv_cache.versions import EngineFacts, UnknownEngineError, engine_facts, parse_engine

__all__ = [
    "Capacity",
    "EngineFacts",
    "Grouping",
    "SequenceRules",
    "UnknownEngineError",
    "cached_layers",
    "engine_facts",
    "group_layers",
    "parse_engine",
    "pool_capacity",
]
