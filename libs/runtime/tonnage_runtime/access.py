"""Who may use a service's API: callers with a bearer token, of which the service knows only the SHA-256.

The file of hashes has one to a line, with a name behind it for people: `<64 hex digits> operator, since March`. It is
looked at again when it changes, so that a token is rotated without a restart: add the new hash, give callers the new
token, take the old hash out. Callers read their token from a file in the same way.
"""

import hashlib
import hmac
import re
import time
from collections.abc import Sequence
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from tonnage_runtime.errors import SettingsError
from tonnage_runtime.http_errors import error_object

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""What kubelets and Prometheus ask for: states and numbers."""
LOOK_S = 1.0
MAX_FILE_BYTES = 1 << 20
_LINE = re.compile(r"([0-9a-f]{64})(\s.*)?", re.IGNORECASE)


class _Watched:
    """A small text file, read again when its time or size changes, looked at once in `LOOK_S` at most."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._looked_at = -LOOK_S
        self._stamp: tuple[int, int, int] | None = None
        self._text = ""

    def text(self, now_s: float) -> str:
        """What it says; what it said last while it cannot be read. `SettingsError` when it never could."""
        if now_s - self._looked_at < LOOK_S:
            return self._text
        self._looked_at = now_s
        try:
            found = self.path.stat()
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
            if stamp != self._stamp:
                with self.path.open("rb") as file:
                    self._text = file.read(MAX_FILE_BYTES).decode("utf-8", "replace")
                self._stamp = stamp
        except OSError as error:
            if self._stamp is None:
                raise SettingsError(f"cannot read {self.path}: {error.strerror or error}") from error
        return self._text


class KnownTokens:
    """The hashes of a file. A file that becomes unusable changes nothing: what was known last holds."""

    def __init__(self, path: Path) -> None:
        self._file = _Watched(path)
        self._text: str | None = None
        self._digests: tuple[str, ...] = ()
        self._read(time.monotonic(), first=True)

    def admits(self, authorization: str | None) -> bool:
        """Whether the header carries one of the tokens; every hash is compared, each in constant time."""
        self._read(time.monotonic())
        kind, _, token = (authorization or "").partition(" ")
        sent = hashlib.sha256(token.strip().encode("latin-1", "replace")).hexdigest()
        known = [hmac.compare_digest(sent, digest) for digest in self._digests]
        return kind.lower() == "bearer" and any(known)

    def _read(self, now_s: float, *, first: bool = False) -> None:
        text = self._file.text(now_s)
        if text == self._text:
            return
        self._text = text
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        found = [_LINE.fullmatch(line) for line in lines]
        good = tuple(match[1].lower() for match in found if match is not None)
        if len(good) == len(lines) and good:
            self._digests = good
        elif first:
            raise SettingsError(
                f"{self._file.path}: a line is the SHA-256 of a token in 64 hex digits, and perhaps a name; "
                f"{len(lines) - len(good)} of {len(lines)} are not"
            )


class OwnToken:
    """The token that this process shows to others, out of a file; what it said last holds while it is unusable."""

    def __init__(self, path: Path) -> None:
        self._file = _Watched(path)
        self._token = ""
        if not self.header():
            raise SettingsError(f"{path}: one token is expected, without spaces")

    def header(self) -> str:
        """The value of `Authorization`."""
        token = self._file.text(time.monotonic()).strip()
        if token and token.isascii() and token.isprintable() and " " not in token:
            self._token = token
        return f"Bearer {self._token}" if self._token else ""


class SharedToken:
    """A token that both sides hold, as a setting gives it: itself, or `@FILE`, whose lines are tokens, read again when
    they change. The first is shown, each is taken: to rotate, a new one is put first, and the old one taken out
    once every side has seen it. What the file said last holds while it is unusable."""

    def __init__(self, setting: str) -> None:
        """`SettingsError` for a file without a token."""
        self._file = _Watched(Path(setting[1:])) if setting.startswith("@") else None
        self._tokens: tuple[str, ...] = (setting,) if setting and self._file is None else ()
        if self._file is not None and not self._known():
            raise SettingsError(f"{setting[1:]}: tokens are expected, one a line, without spaces")

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._known())

    def value(self) -> str:
        """The token to show; empty without one."""
        return next(iter(self._known()), "")

    def admits(self, sent: str) -> bool:
        """Whether it is one of them; each is compared in constant time."""
        found = [hmac.compare_digest(sent.encode("utf-8", "replace"), token.encode()) for token in self._known()]
        return any(found)

    def _known(self) -> tuple[str, ...]:
        if self._file is not None:
            lines = self._file.text(time.monotonic()).split("\n")
            found = tuple(line.strip() for line in lines if line.strip())
            if found and all(token.isascii() and token.isprintable() and " " not in token for token in found):
                self._tokens = found
        return self._tokens


class TokenGate:
    """ASGI middleware: 401 without a known token, but for open paths and `beside`, prefixes with gates of their own."""

    def __init__(self, app: ASGIApp, tokens: KnownTokens, beside: Sequence[str] = ()) -> None:
        self._app = app
        self._tokens = tokens
        self._beside = tuple(beside)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or self._open(scope["path"]) or self._tokens.admits(_authorization(scope)):
            await self._app(scope, receive, send)
            return
        message = "a bearer token is needed: send it as `Authorization: Bearer TOKEN`"
        answer = error_object(message, "authentication_error", 401, {"WWW-Authenticate": "Bearer"})
        await answer(scope, receive, send)

    def _open(self, path: str) -> bool:
        return path in OPEN_PATHS or path.startswith(self._beside)


def _authorization(scope: Scope) -> str | None:
    """The header; None when there is none, or more than one."""
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    return found[0].decode("latin-1") if len(found) == 1 else None
