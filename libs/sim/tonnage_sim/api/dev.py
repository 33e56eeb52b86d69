"""What vLLM serves in development mode only: the prefix cache's reset, and sleep."""

import asyncio
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from tonnage_sim.api.bodies import refusal
from tonnage_sim.api.service import Service
from tonnage_sim.http1.exchange import Exchange
from tonnage_sim.http1.message import Request, Response, json_response
from tonnage_sim.metrics import SimMetrics


class SleepQuery(BaseModel):
    """Level 1 keeps the weights in host memory, 2 drops them; `mode`: what happens to running requests."""

    level: Annotated[int, Field(ge=0, le=2)] = 1
    mode: Literal["abort", "wait", "keep"] = "abort"


class Dev:
    """The handlers. Waking takes the time to move the weights back only in the real engine."""

    def __init__(self, service: Service, metrics: SimMetrics) -> None:
        self._service = service
        self._metrics = metrics
        self._level: int | None = None

    async def reset_prefix_cache(self, _: Request, __: Exchange) -> Response:
        """Forget cached blocks; not while requests hold some."""
        return json_response({"success": self._service.loop.reset_prefix_cache()})

    async def reset_mm_cache(self, _: Request, __: Exchange) -> Response:
        """There is no multi-modal cache to forget."""
        return Response(200)

    async def sleep(self, request: Request, _: Exchange) -> Response:
        """Stop the engine; its cache is gone afterwards unless requests are kept."""
        try:
            query = SleepQuery.model_validate(dict(request.query))
        except ValidationError as error:
            raise refusal(error.errors(include_url=False), "query") from error
        loop = self._service.loop
        if query.mode == "abort":
            loop.end_all("abort")
        elif query.mode == "wait":
            await loop.drained()
        loop.hold(True)
        loop.reset_prefix_cache()
        self._show(query.level)
        return json_response({"status": "sleeping", "level": query.level})

    async def wake_up(self, request: Request, _: Exchange) -> Response:
        """Start the engine again."""
        await asyncio.sleep(0)
        self._service.loop.hold(False)
        self._show(None)
        tags = [value for name, value in request.queries if name == "tags"]
        return json_response({"status": "awake", "tags": tags or None})

    async def is_sleeping(self, _: Request, __: Exchange) -> Response:
        """Whether it sleeps."""
        return json_response({"is_sleeping": self._level is not None})

    def _show(self, level: int | None) -> None:
        self._level = level
        states = self._metrics.sleep_state
        states["awake"].value = float(level is None)
        states["weights_offloaded"].value = float(level == 1)
        states["discard_all"].value = float(level == 2)
