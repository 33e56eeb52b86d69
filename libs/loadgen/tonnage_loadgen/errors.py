"""Errors of the load generator."""

from tonnage_core.errors import BadInputError, TonnageError


class TargetError(BadInputError):
    """The URL under test is not one, or nothing usable answers there."""


class TraceFileError(BadInputError):
    """A trace file cannot be read."""


class ReportError(TonnageError):
    """A report cannot be written."""


class GeneratorError(TonnageError):
    """The load generator itself failed, so that nothing was measured."""
