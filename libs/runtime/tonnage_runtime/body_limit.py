"""Bodies over a limit are answered with 413 before they are held."""

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tonnage_core.errors import TonnageError


class BodyTooLargeError(TonnageError):
    """A request body went over the limit while it was read."""


class BodyLimit:
    """ASGI middleware: a declared length over the limit is refused at once, an undeclared one when it is reached."""

    def __init__(self, app: ASGIApp, limit_bytes: int) -> None:
        self._app = app
        self._limit = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._limit:
            await self._refusal()(scope, receive, send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._limit:
                raise BodyTooLargeError(f"the request body is over {self._limit} bytes")
            return message

        async def replaced(message: Message) -> None:
            # The framework turns what `counted` raises into an answer of its own; the true reason goes out instead.
            if read <= self._limit:
                await send(message)
            elif message["type"] == "http.response.start":
                await self._refusal()(scope, receive, send)

        await self._app(scope, counted, replaced)

    def _refusal(self) -> JSONResponse:
        message = f"the request body is over {self._limit} bytes: send less"
        return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, status_code=413)
