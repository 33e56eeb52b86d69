"""Errors of the router."""

from tonnage_core.errors import BadInputError, TonnageError


class RouterError(TonnageError):
    """Root of the router's own errors."""


class BadBodyError(BadInputError):
    """A request body cannot be routed; `param` names the field, where there is one."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ProbeError(RouterError):
    """An engine did not answer a probe, or another call of the router's own, as expected; `status` if it answered."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class PeerEntryError(RouterError):
    """What another replica told cannot be read."""


class EndpointFileError(BadInputError):
    """The endpoint file cannot be used; the running set is kept."""


class KvEventError(RouterError):
    """An engine's KV-event batch cannot be read."""
