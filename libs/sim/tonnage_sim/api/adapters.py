"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter."""

import asyncio
from pathlib import Path

from pydantic import BaseModel

from tonnage_sim.api.bodies import read_json, validated
from tonnage_sim.api.models import Adapter
from tonnage_sim.api.service import Service
from tonnage_sim.errors import ApiError
from tonnage_sim.http1.exchange import Exchange
from tonnage_sim.http1.message import Request, Response

_OFF = (
    "Call to add_lora method failed: Worker failed with error 'LoRA is not enabled. Use --enable-lora to enable "
    "LoRA.', please check the stack trace above for the root cause"
)


class LoadAdapter(BaseModel):
    """The body of a load."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False
    is_3d_lora_weight: bool = False


class UnloadAdapter(BaseModel):
    """The body of an unload."""

    lora_name: str
    lora_int_id: int | None = None


class Adapters:
    """The two handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def load(self, request: Request, _: Exchange) -> Response:
        """Serve an adapter under a name."""
        body = validated(LoadAdapter, read_json(request), request)
        service = self._service
        if not body.lora_name or not body.lora_path:
            raise _user_error("Both 'lora_name' and 'lora_path' must be provided.")
        if body.lora_name in service.models.names:
            raise _user_error(f"The lora adapter '{body.lora_name}' conflicts with a served base model.")
        if body.lora_name in service.models.adapters and not body.load_inplace:
            raise _user_error(
                f"The lora adapter '{body.lora_name}' has already been loaded. If you want to load the adapter in "
                "place, set 'load_inplace' to True."
            )
        if service.max_loras == 0:
            raise ApiError(_OFF, status=500, kind="InternalServerError")
        if service.check_lora_paths and not await asyncio.to_thread(Path(body.lora_path).is_dir):
            raise ApiError(
                f"Loading lora {body.lora_name} failed: No adapter found for {body.lora_path}",
                status=404,
                kind="NotFoundError",
            )
        service.models.adapters[body.lora_name] = Adapter(body.lora_name, body.lora_path)
        return Response(200, f"Success: LoRA adapter '{body.lora_name}' added successfully.".encode())

    async def unload(self, request: Request, _: Exchange) -> Response:
        """Serve an adapter no longer; requests that use it end as they are."""
        body = validated(UnloadAdapter, read_json(request), request)
        if not body.lora_name:
            raise _user_error("'lora_name' needs to be provided to unload a LoRA adapter.")
        if self._service.models.adapters.pop(body.lora_name, None) is None:
            raise ApiError(f"The lora adapter '{body.lora_name}' cannot be found.", status=404, kind="NotFoundError")
        return Response(200, f"Success: LoRA adapter '{body.lora_name}' removed successfully.".encode())


def _user_error(message: str) -> ApiError:
    return ApiError(message, kind="InvalidUserInput")
