"""A server's certificate: loaded at start with one clear error, followed when it is renewed."""

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from tonnage_runtime.errors import SettingsError

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
    """Give new connections a renewed certificate until cancelled; one that cannot be used changes nothing."""
    known = tls.stamp()
    while True:
        await asyncio.sleep(CERTIFICATE_LOOK_S)
        try:
            if (now := tls.stamp()) != known:
                context.load_cert_chain(tls.cert, tls.key)
                known = now
        except (ssl.SSLError, OSError) as error:
            log.warning("certificate not renewed", extra={"file": tls.cert, "reason": str(error)})
