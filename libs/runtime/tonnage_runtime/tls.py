"""Certificates: a server's, loaded at start with one clear error and followed when it is renewed, and the authorities
that callers trust."""

import asyncio
import contextlib
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from tonnage_runtime.errors import SettingsError
from tonnage_runtime.settings import Settings

log = logging.getLogger("tonnage.http")
CERTIFICATE_LOOK_S = 30.0
"""Between looks at whether a certificate was renewed: issuers renew days before the end."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the server's certificate and key, and the CA that every client's certificate must come from (None:
    clients need none)."""

    cert: str
    key: str
    client_ca: str | None = None

    def stamp(self) -> tuple[tuple[int, int], ...]:
        """Changes when the certificate or the key does."""
        return tuple((found.st_mtime_ns, found.st_ino) for found in (Path(self.cert).stat(), Path(self.key).stat()))


def certificate(cert: Path | None, key: Path | None, name: str = "tls") -> Tls | None:
    """The pair, or None for neither; ValueError naming the settings `<name>_cert_file`, `_key_file` for half of it."""
    if (cert is None) != (key is None):
        raise ValueError(f"give {name}_cert_file and {name}_key_file together")
    return None if cert is None else Tls(str(cert), str(key))


class TlsSettings(Settings):
    """Settings of a part whose port may speak HTTPS."""

    tls_cert_file: Path | None = None
    """PEM certificate chain of the port, followed when it is renewed: callers then speak HTTPS."""
    tls_key_file: Path | None = None
    """Its key."""

    @property
    def tls(self) -> Tls | None:
        """The port's certificate, if it has one."""
        return certificate(self.tls_cert_file, self.tls_key_file)

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        certificate(self.tls_cert_file, self.tls_key_file)
        return self


class _Believing(ssl.SSLContext):
    """A caller's context that takes up a renewed file of authorities before it connects; those that it knew stay."""

    _ca_file: Path | None = None
    _stamp: tuple[int, int] | None = None

    def take_up(self, ca_file: Path) -> None:
        """Believe the file from now on. Raises OSError, which an SSLError is too."""
        found = ca_file.stat()
        if (stamp := (found.st_mtime_ns, found.st_ino)) != self._stamp:
            self.load_verify_locations(ca_file)
            self._ca_file, self._stamp = ca_file, stamp

    def wrap_socket(self, *arguments: Any, **named: Any) -> ssl.SSLSocket:
        self._look()
        return super().wrap_socket(*arguments, **named)

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        self._look()
        return super().wrap_bio(*arguments, **named)

    def _look(self) -> None:
        if self._ca_file is not None:
            with contextlib.suppress(OSError):  # half written, or gone for a moment
                self.take_up(self._ca_file)


def client_context(ca_file: Path | str | None) -> ssl.SSLContext:
    """Believes the system's authorities, and those of `ca_file`, followed when it is renewed. Raises `SettingsError`
    for a file without any."""
    context = _Believing(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    if ca_file is not None:
        try:
            context.take_up(Path(ca_file))
        except OSError as error:
            raise SettingsError(f"{ca_file}: {error}: give PEM certificates of authorities") from error
    return context


def server_context(tls: Tls) -> ssl.SSLContext:
    """TLS 1.2 and up with the files of `tls`. Raises `SettingsError` naming them when they cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.cert, tls.key)
        if tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (tls.cert, tls.key, tls.client_ca)))
        raise SettingsError(f"TLS files {files}: {error}: give a PEM certificate, its key and a CA") from error
    return context


async def follow_certificate(context: ssl.SSLContext, tls: Tls) -> None:
    """Give new connections a renewed certificate until cancelled; one that cannot be used changes nothing and is told
    once."""
    known, told = None, ""
    while True:
        await asyncio.sleep(CERTIFICATE_LOOK_S)
        try:
            if (now := tls.stamp()) != known:
                server_context(tls)  # with half of a renewed pair OpenSSL takes the certificate and drops the key
                context.load_cert_chain(tls.cert, tls.key)
                known = now
            told = ""
        except (SettingsError, OSError) as error:
            if str(error) != told:
                told = str(error)
                log.warning("certificate not renewed", extra={"file": tls.cert, "reason": told})
