"""Errors of the shared I/O layer."""

from tonnage_core.errors import BadInputError, TonnageError


class SettingsError(BadInputError):
    """A setting is unknown or has a wrong value; the message names it and its source."""


class ListenError(BadInputError):
    """An address cannot be listened on: it is no address of this machine, or the port is out of range or reserved."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(f"cannot listen on {host} port {port}: {reason}: choose another address or port")


class PortInUseError(TonnageError):
    """A listening port is taken; `instead` says how another is chosen."""

    def __init__(self, host: str, port: int, instead: str = "choose another port") -> None:
        super().__init__(f"port {port} on {host} is in use: stop the other process or {instead}")
        self.host = host
        self.port = port
