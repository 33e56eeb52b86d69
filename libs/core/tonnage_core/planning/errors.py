"""Why a plan cannot be made."""

from tonnage_core.errors import BadInputError


class PlanSpecError(BadInputError):
    """A field of a plan specification is missing, unknown or impossible; the message names it and what it takes."""
