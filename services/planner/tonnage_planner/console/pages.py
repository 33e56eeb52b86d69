"""The console's files: one shell for its pages, scripts, styles and fonts, all from this package under one policy."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse

PAGES = ("fleet", "decisions", "plan")
READ = ["GET", "HEAD"]
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".woff2": "font/woff2",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types"
)
"""Nothing from elsewhere, nothing inline, nowhere to send to, no text that becomes markup or script."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
}


@dataclass(frozen=True)
class Asset:
    """One file, read once."""

    body: bytes
    media_type: str
    etag: str


def read_assets() -> dict[str, Asset]:
    """Every file of the package's `static` by its path there."""
    found: dict[str, Asset] = {}
    _walk(files("tonnage_planner.console").joinpath("static"), "", found)
    return found


def _walk(folder: Traversable, prefix: str, found: dict[str, Asset]) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            _walk(entry, f"{prefix}{entry.name}/", found)
        elif (media_type := TYPES.get("." + entry.name.rpartition(".")[2])) is not None:
            body = entry.read_bytes()
            found[prefix + entry.name] = Asset(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:24]}"')


def add_pages(app: FastAPI) -> None:
    """`/console`, its pages and its files."""
    assets = read_assets()

    @app.api_route("/console", methods=READ, include_in_schema=False)
    @app.api_route("/console/", methods=READ, include_in_schema=False)
    async def start() -> Response:
        return RedirectResponse("/console/fleet", headers=HEADERS)

    @app.api_route("/console/static/{path:path}", methods=READ, include_in_schema=False)
    async def asset(path: str, request: Request) -> Response:
        return _answer(assets.get(path), request)

    @app.api_route("/console/{page}", methods=READ, include_in_schema=False)
    async def page(page: str, request: Request) -> Response:
        return _answer(assets["index.html"] if page in PAGES else None, request)


def _answer(asset: Asset | None, request: Request) -> Response:
    if asset is None:
        return Response("no such page of the console; it has fleet, decisions and plan", 404, HEADERS, "text/plain")
    headers = HEADERS | {"etag": asset.etag}
    if _holds(request, asset.etag):
        return Response(None, 304, headers)
    return Response(asset.body, 200, headers, asset.media_type)


def _holds(request: Request, etag: str) -> bool:
    """Whether the caller has this version: it may name several, and a proxy that zips marks them as weak."""
    named = request.headers.get("if-none-match", "").split(",")
    return any(one.strip().removeprefix("W/") in (etag, "*") for one in named)
