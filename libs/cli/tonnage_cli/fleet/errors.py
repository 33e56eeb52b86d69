"""Errors of the local fleet."""

from tonnage_core.errors import TonnageError


class FleetError(TonnageError):
    """A part of the local fleet could not start, or kept dying; the message names it and quotes its last log line."""
