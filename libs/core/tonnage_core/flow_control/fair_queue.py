"""A bounded fair queue: strict priorities, weighted deficit round robin between tenants, earliest deadline within one.

Deficit round robin: Shreedhar and Varghese, "Efficient Fair Queuing using Deficit Round-Robin" (SIGCOMM 1995); here the
quantum is multiplied by the tenant's weight and a request costs its tokens, and a quarter of the quantum at least: a
short prompt takes a place in an engine too, and a thousand of them would be one turn. Every operation is O(log n) in
the tenant's requests and O(1), amortised, in the tenants; `make_room`, for a full queue alone, is O(n) in both.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
QUANTUM_TOKENS = 2048.0
"""Deficit one round gives a tenant of weight 1: about one prompt, so that turns alternate at request size."""
LEAST_COST_TOKENS = QUANTUM_TOKENS / 4


@dataclass(slots=True, eq=False)
class _Lane(Generic[T]):
    weight: float
    heap: list[tuple[float, int, float, T]] = field(default_factory=list)
    deficit: float = 0.0
    fresh: bool = True


class FairQueue(Generic[T]):
    """Items of one pool. `alive(item)` tells whether an item still waits; dead ones vanish without cost."""

    def __init__(self, max_items: int, alive: Callable[[T], bool]) -> None:
        self._max_items = max_items
        self._alive = alive
        self._bands: dict[int, OrderedDict[str, _Lane[T]]] = {}
        self._sequence = 0
        self._count = 0
        self.waiting_cost = 0.0

    def __len__(self) -> int:
        return self._count

    def push(
        self, item: T, tenant: str, *, cost: float, deadline: float, weight: float = 1.0, priority: int = 0
    ) -> bool:
        """Add an item of `cost` tokens that must leave by `deadline`; False when the queue is full."""
        if self._count >= self._max_items:
            return False
        lanes = self._bands.setdefault(priority, OrderedDict())
        lane = lanes.get(tenant)
        if lane is None:
            lane = lanes[tenant] = _Lane(weight)
        lane.weight = weight
        self._sequence += 1
        heapq.heappush(lane.heap, (deadline, self._sequence, cost, item))
        self._count += 1
        self.waiting_cost += cost
        return True

    def make_room(self, tenant: str, *, weight: float = 1.0, priority: int = 0) -> T | None:
        """In a full queue, remove and return the newest item of whoever has most waiting for its weight, if that is
        more than `tenant` would have; one of a lower priority goes first. None: the newcomer is the one to refuse. What
        is returned may be dead: then nobody is to be told."""
        for band in sorted(self._bands):
            if band > priority or not self._bands[band]:
                continue
            lanes = self._bands[band]
            name, longest = max(lanes.items(), key=lambda lane: len(lane[1].heap) / lane[1].weight)
            own = len(lanes[tenant].heap) if band == priority and tenant in lanes else 0
            if band == priority and len(longest.heap) / longest.weight <= (own + 1) / weight:
                return None
            return self._drop_newest(lanes, name)
        return None

    def _drop_newest(self, lanes: OrderedDict[str, _Lane[T]], name: str) -> T:
        lane = lanes[name]
        newest = max(lane.heap, key=lambda entry: entry[1])
        lane.heap.remove(newest)
        heapq.heapify(lane.heap)
        if not lane.heap:
            del lanes[name]
        self._count -= 1
        self.waiting_cost -= newest[2]
        return newest[3]

    def pop(self) -> T | None:
        """The next item, or None when nothing alive waits."""
        for priority in sorted(self._bands, reverse=True):
            item = self._pop_band(self._bands[priority])
            if not self._bands[priority]:
                del self._bands[priority]
            if item is not None:
                return item
        return None

    def _pop_band(self, lanes: OrderedDict[str, _Lane[T]]) -> T | None:
        while lanes:
            tenant, lane = next(iter(lanes.items()))
            self._drop_dead(lane)
            if not lane.heap:
                del lanes[tenant]
                continue
            if lane.fresh:
                lane.deficit += QUANTUM_TOKENS * lane.weight
                lane.fresh = False
            cost = max(LEAST_COST_TOKENS, lane.heap[0][2])
            if cost <= lane.deficit:
                lane.deficit -= cost
                return self._take(lane)
            lane.fresh = True
            lanes.move_to_end(tenant)
            if len(lanes) == 1:
                lane.deficit = cost  # alone in its band: nobody to be fair to
        return None

    def _take(self, lane: _Lane[T]) -> T:
        _, _, cost, item = heapq.heappop(lane.heap)
        self._count -= 1
        self.waiting_cost -= cost
        return item

    def _drop_dead(self, lane: _Lane[T]) -> None:
        while lane.heap and not self._alive(lane.heap[0][3]):
            self._take(lane)

    def expire(self, now: float) -> list[T]:
        """Remove and return the items whose deadline has passed; dead ones on top go too."""
        expired: list[T] = []
        for lanes in self._bands.values():
            for lane in lanes.values():
                self._drop_dead(lane)
                while lane.heap and lane.heap[0][0] <= now:
                    item = self._take(lane)
                    if self._alive(item):
                        expired.append(item)
        return expired

    def drain(self) -> list[T]:
        """Remove and return everything alive, in the order it would have left."""
        items: list[T] = []
        while (item := self.pop()) is not None:
            items.append(item)
        return items
