"""Errors of the bench service."""

from tonnage_core.errors import BadInputError, TonnageError


class UnknownJobError(TonnageError):
    """No such job: answered with 404."""


class NotThereError(TonnageError):
    """The job has not what was asked for, yet or ever: answered with 409."""


class BusyError(TonnageError):
    """Too many jobs wait: answered with 429."""


class TargetRefusedError(BadInputError):
    """A URL that jobs of this service may not be pointed at."""


class UnauthorizedError(TonnageError):
    """The bearer token is missing or wrong: answered with 401."""


class LedgerError(TonnageError):
    """The database cannot be read or written now: answered with 503; what was asked for may be asked again.

    `kind` is `locked`, `full`, `read_only`, `damaged` or `other`.
    """

    def __init__(self, message: str, kind: str = "other") -> None:
        super().__init__(message)
        self.kind = kind


class LedgerFileError(BadInputError):
    """The database's file is none of ours or damaged: the service does not start over it."""


class QueueError(TonnageError):
    """The queue cannot be reached; runs are sent again when it can."""


class DeskError(TonnageError):
    """The service did not answer a worker; it may be asked again."""
