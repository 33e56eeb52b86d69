"""Custom resources by kopf: it lists, watches, lists again after 410 and cut streams, and follows definitions that come
later. Only raw events are used: they set no finalizer and write no annotation, so nothing waits for the operator.

kopf does not say when it has told of everything, nor of what was deleted while no watch was open; `Customs.census`
finds both.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import kopf
from kubernetes.client import Configuration

from tonnage_operator.kinds import CUSTOM
from tonnage_runtime.kube import Object

JOIN_S = 10.0
WATCH_S, SPARE_S = 30, 10
"""The server ends each watch after `WATCH_S` and the next goes on from there; one whose end stays out `SPARE_S` more
died in silence, as in the reflectors."""
Event = Callable[[str, str, Object], None]
"""(plural, type, object): type is ADDED, MODIFIED, DELETED, or LISTED for what was there."""


class KopfWatch:
    """Watches the custom resources of the whole cluster. `event` is called in a thread of its own."""

    def __init__(
        self, login: Callable[[], Configuration], event: Event, *, watch_s: int = WATCH_S, spare_s: int = SPARE_S
    ) -> None:
        self._login, self._event = login, event
        self._registry = kopf.OperatorRegistry()
        self._settings = kopf.OperatorSettings()
        self._settings.posting.enabled = False
        self._settings.networking.request_timeout = 60
        self._settings.watching.server_timeout = watch_s
        self._settings.watching.client_timeout = watch_s + spare_s
        self._register()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def _register(self) -> None:
        for resource in CUSTOM:
            self._on_event(resource.group, resource.version, resource.plural)

        @kopf.on.login(registry=self._registry)
        def login(**_: Any) -> kopf.ConnectionInfo:
            return connection(self._login())

    def _on_event(self, group: str, version: str, plural: str) -> None:
        @kopf.on.event(group, version, plural, registry=self._registry)
        async def on_event(type: str | None, body: Mapping[str, Any], **_: Any) -> None:
            self._event(plural, type or "LISTED", plain(body))

    def start(self) -> None:
        """Begin, in a thread with a loop of its own: in the main thread kopf would take the process's signals."""
        logging.getLogger("kopf").setLevel(logging.WARNING)
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for it some seconds."""
        self._stop.set()
        self._thread.join(JOIN_S)

    @property
    def alive(self) -> bool:
        """Whether it still watches."""
        return self._thread.is_alive()

    def _run(self) -> None:
        operator = kopf.operator(
            registry=self._registry,
            settings=self._settings,
            clusterwide=True,
            standalone=True,
            stop_flag=self._stop,
        )
        asyncio.run(operator)


def plain(value: Any) -> Any:
    """kopf's views as plain objects."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def connection(found: Configuration) -> kopf.ConnectionInfo:
    """The client's configuration in kopf's words; asked for again when the server refuses the token."""
    token = found.get_api_key_with_prefix("BearerToken") or ""
    return kopf.ConnectionInfo(
        server=found.host,
        ca_path=found.ssl_ca_cert,
        insecure=not found.verify_ssl,
        token=token.removeprefix("Bearer ").removeprefix("bearer ") or None,
        certificate_path=found.cert_file,
        private_key_path=found.key_file,
    )
