"""The simulator's own API: faults, and the state that vLLM does not show."""

import orjson
from pydantic import ValidationError

from tonnage_sim.api.bodies import refusal
from tonnage_sim.api.service import Service
from tonnage_sim.errors import PlainError
from tonnage_sim.faults import Fault
from tonnage_sim.http1.exchange import Exchange
from tonnage_sim.http1.message import Request, Response, json_response


class Admin:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def begin_fault(self, request: Request, _: Exchange) -> Response:
        """Put a fault in force."""
        try:
            document = orjson.loads(request.body)
        except orjson.JSONDecodeError as error:
            raise PlainError(f"the body is not JSON: {error}; send a fault such as {{'kind': 'slow'}}", 400) from error
        try:
            fault = Fault.model_validate(document)
        except ValidationError as error:
            raise refusal(error.errors(include_url=False)) from error
        self._service.faults.begin(fault)
        return self._listed()

    async def list_faults(self, _: Request, __: Exchange) -> Response:
        """The faults in force."""
        self._service.faults.expire()
        return self._listed()

    async def clear_faults(self, request: Request, _: Exchange) -> Response:
        """End the fault of `?kind=`, or all."""
        self._service.faults.clear(request.query.get("kind"))
        return self._listed()

    async def state(self, _: Request, __: Exchange) -> Response:
        """Engine time, how far the loop is behind it, and the engine's counters."""
        service = self._service
        stats = service.loop.stats
        return json_response(
            {
                "schema": "tonnage.sim_state/1",
                "engine_s": service.clock.now(),
                "time_scale": service.clock.scale,
                "lag_s": service.loop.lag_s,
                "running": stats.running,
                "waiting": stats.waiting,
                "kv_usage": stats.kv_usage,
                "cached_blocks": stats.cached_blocks,
                "num_blocks": service.loop.engine.config.num_blocks,
                "block_size": service.loop.engine.config.block_size,
                "counters": {name: getattr(stats.counters, name) for name in stats.counters.__slots__},
            }
        )

    def _listed(self) -> Response:
        return json_response({"faults": self._service.faults.listed()})
