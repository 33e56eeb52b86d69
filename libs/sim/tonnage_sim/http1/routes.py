"""Paths to handlers; answers for what is not there as Starlette words them, since vLLM's are Starlette's."""

from collections.abc import Awaitable, Callable

from tonnage_sim.http1.exchange import Exchange
from tonnage_sim.http1.message import Request, Response, json_response

Handler = Callable[[Request, Exchange], Awaitable[Response | None]]
"""Answers a request: a whole response, or None when it has taken the exchange over (a stream)."""

UNMATCHED = "none"


class Routes:
    """A table of (path, method) -> handler."""

    def __init__(self) -> None:
        self._table: dict[str, dict[str, Handler]] = {}

    def add(self, methods: str, path: str, handler: Handler) -> None:
        """Serve `path` for the space-separated `methods`."""
        for method in methods.split():
            self._table.setdefault(path, {})[method] = handler

    def paths(self) -> list[str]:
        """Every path served."""
        return sorted(self._table)

    def find(self, request: Request) -> tuple[str, Handler]:
        """The path as metrics name it and the handler; for what is not served, one that says so."""
        methods = self._table.get(request.path)
        if methods is None:
            other = request.path[:-1] if request.path.endswith("/") else request.path + "/"
            if other in self._table:
                return UNMATCHED, _redirect(other)
            return UNMATCHED, _not_found
        handler = methods.get(request.method)
        return (UNMATCHED, _not_allowed(", ".join(methods))) if handler is None else (request.path, handler)


async def _not_found(_: Request, __: Exchange) -> Response:
    return json_response({"detail": "Not Found"}, 404)


def _not_allowed(methods: str) -> Handler:
    async def answer(_: Request, __: Exchange) -> Response:
        response = json_response({"detail": "Method Not Allowed"}, 405)
        response.headers = (("allow", methods),)
        return response

    return answer


def _redirect(path: str) -> Handler:
    async def answer(request: Request, _: Exchange) -> Response:
        host = request.headers.get("host")
        return Response(307, headers=(("location", f"http://{host}{path}" if host else path),))

    return answer
