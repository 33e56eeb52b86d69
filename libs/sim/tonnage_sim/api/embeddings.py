"""POST /v1/embeddings: vectors drawn from the text, of unit length; equal inputs have equal vectors."""

import base64
import hashlib
import math
from array import array
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tonnage_sim.api.bodies import read_json, validated
from tonnage_sim.api.collect import Collect
from tonnage_sim.api.generation import Ask
from tonnage_sim.api.service import Service
from tonnage_sim.engine.output import StopRules
from tonnage_sim.errors import ApiError
from tonnage_sim.http1.exchange import Exchange
from tonnage_sim.http1.message import Request, Response, json_response

DIMENSIONS = 256
_MAX_DIMENSIONS = 16384

TokenId = Annotated[int, Field(ge=0)]


class EmbeddingRequest(BaseModel):
    """As OpenAI's."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    input: list[TokenId] | list[list[TokenId]] | str | list[str]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=_MAX_DIMENSIONS)] | None = None
    user: str | None = None


class Embeddings:
    """The handler: each input passes through the engine as a prompt of one output token."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, request: Request, exchange: Exchange) -> Response:
        """Vectors of the inputs."""
        service = self._service
        body = validated(EmbeddingRequest, read_json(request), request)
        model, adapter = service.models.resolve(body.model)
        prompts = self._prompts(body.input)
        rules = StopRules(max_tokens=1, ignore_eos=True)
        asks = [Ask(prompt=prompt, rules=rules, adapter=adapter.name if adapter else None) for prompt in prompts]
        collect = Collect(exchange, service.faults)
        prepared = service.generator.prepare(asks, collect)
        collect.start([sample for _, sample in prepared], lambda: service.generator.abort(prepared))
        service.generator.submit(prepared)
        await collect.wait()
        size = body.dimensions or DIMENSIONS
        data = [
            {"index": i, "object": "embedding", "embedding": _encoded(vector(prompt, size), body.encoding_format)}
            for i, prompt in enumerate(prompts)
        ]
        total = sum(map(len, prompts))
        usage = {"prompt_tokens": total, "total_tokens": total, "completion_tokens": 0, "prompt_tokens_details": None}
        return json_response(
            {
                "id": service.request_id("embd", request, None),
                "object": "list",
                "created": service.created(),
                "model": model,
                "data": data,
                "usage": usage,
            }
        )

    def _prompts(self, given: list[int] | list[list[int]] | str | list[str]) -> list[Sequence[int]]:
        reader = self._service.prompts
        if not given:
            raise ApiError("You must pass at least one prompt")
        if isinstance(given, str):
            return [reader.text(given)]
        if isinstance(given[0], int):
            return [reader.ids([t for t in given if isinstance(t, int)])]
        return [
            reader.text(one) if isinstance(one, str) else reader.ids(one) for one in given if not isinstance(one, int)
        ]


def vector(tokens: Sequence[int], size: int) -> list[float]:
    """A unit vector that depends on the tokens alone."""
    drawn = array("h")
    drawn.frombytes(hashlib.shake_128(array("I", tokens).tobytes()).digest(2 * size))
    length = math.sqrt(sum(x * x for x in drawn)) or 1.0
    return [x / length for x in drawn]


def _encoded(values: list[float], form: str) -> Any:
    return values if form == "float" else base64.b64encode(array("f", values).tobytes()).decode()
