"""What other nodes may ask for, with the fleet's token: manifests and chunks."""

import asyncio
from typing import Annotated, Any

from fastapi import FastAPI, Header, Query
from fastapi.responses import JSONResponse, Response
from starlette.requests import Request

from tonnage_coldstart.errors import ContentMismatchError
from tonnage_coldstart.metrics import ColdstartMetrics
from tonnage_coldstart.peers.shelf import Shelf
from tonnage_core.errors import TonnageError


class StrangerError(TonnageError):
    """A caller without the fleet's token: answered with 401."""


def add_peer_routes(app: FastAPI, shelf: Shelf, metrics: ColdstartMetrics) -> None:
    """Serve the shelf; without a token of our own every caller is a stranger."""
    refused: dict[int | str, dict[str, Any]] = {
        401: {"description": "Not of this fleet"},
        404: {"description": "Not here"},
        410: {"description": "The disk lost bits of it"},
    }

    @app.get("/v1/manifests/{key}", tags=["peers"], responses=refused)
    async def manifest(key: str, x_tonnage_peer_token: Annotated[str, Header()] = "") -> Response:
        """The manifest of a published snapshot."""
        _admit(shelf, x_tonnage_peer_token)
        return Response(await asyncio.to_thread(shelf.manifest, key), media_type="application/json")

    @app.get("/v1/chunks/{digest}", tags=["peers"], responses=refused)
    async def chunk(
        digest: str,
        file: Annotated[str, Query(min_length=1, max_length=1024)],
        index: Annotated[int, Query(ge=0, lt=1 << 32)],
        x_tonnage_peer_token: Annotated[str, Header()] = "",
    ) -> Response:
        """One chunk of a file, checked as it leaves; `digest` is that of the snapshot's manifest."""
        _admit(shelf, x_tonnage_peer_token)
        raw = await asyncio.to_thread(shelf.chunk, digest, file, index)
        metrics.peer_bytes.inc(len(raw))
        return Response(raw, media_type="application/octet-stream")

    app.add_exception_handler(StrangerError, _stranger)
    app.add_exception_handler(ContentMismatchError, _lost)


def _admit(shelf: Shelf, token: str) -> None:
    if not shelf.admits(token):
        raise StrangerError("the fleet's token is missing or wrong: nodes share it as `peer_token`")


async def _stranger(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": {"message": str(error), "type": "authentication_error"}}, status_code=401)


async def _lost(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": {"message": str(error), "type": "corrupt_error"}}, status_code=410)
