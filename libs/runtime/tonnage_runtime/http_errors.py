"""One shape for every refusal, `{"error": {"message", "type"}}`, and an OpenAPI document that says so.

The framework's own answers differ: 422 with a list, `{"detail": …}` for a body it cannot parse, and an Allow header
that names the methods of a path's first route only.
"""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from tonnage_core.errors import BadInputError, TonnageError


class ServiceApp(FastAPI):
    """The framework with our refusals."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_exception_handler(TonnageError, _tonnage_error)
        self.add_exception_handler(RequestValidationError, _not_valid)
        self.add_exception_handler(HTTPException, _refused)

    def openapi(self) -> dict[str, Any]:
        """The document, in which a wrong request is answered with 400."""
        fresh = self.openapi_schema is None
        document = super().openapi()
        if fresh:
            _document_refusals(document)
        return document


def error_object(message: str, kind: str, status: int, headers: Any = None) -> JSONResponse:
    """An answer that refuses."""
    return JSONResponse({"error": {"message": message, "type": kind}}, status_code=status, headers=headers)


def _document_refusals(document: dict[str, Any]) -> None:
    for path in document["paths"].values():
        for operation in path.values():
            if operation["responses"].pop("422", None) is not None:
                operation["responses"].setdefault("400", {"description": "The request is not well formed"})
    for name in ("HTTPValidationError", "ValidationError"):
        document.get("components", {}).get("schemas", {}).pop(name, None)


async def _tonnage_error(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, BadInputError):
        return error_object(str(error), "invalid_request_error", 400)
    return error_object(str(error), "internal_error", 500)


async def _not_valid(_: Request, error: Exception) -> JSONResponse:
    first = error.errors()[0] if isinstance(error, RequestValidationError) else {"loc": (), "msg": str(error)}
    where = ".".join(str(part) for part in first["loc"])
    return error_object(f"{where}: {first['msg']}", "invalid_request_error", 400)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    """What the framework itself refuses: no such path or method, a body it cannot parse."""
    status, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, str(error))
    headers = error.headers if isinstance(error, HTTPException) else None
    if status == 405:
        headers = {"Allow": ", ".join(sorted(_methods(request)))}
    return error_object(detail, "not_found_error" if status == 404 else "invalid_request_error", status, headers)


def _methods(request: Request) -> set[str]:
    """What a path takes over all routes of its spelling; of `/a/{key}` and `/a/b` the latter speaks for `/a/b`."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    found = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    fewest = min((route.path.count("{") for route in found), default=0)
    return set().union(*(route.methods or set() for route in found if route.path.count("{") == fewest))
