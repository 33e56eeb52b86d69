"""The root of Tonnage's error trees. Each package derives its own tree from `TonnageError`."""


class TonnageError(Exception):
    """Any error Tonnage raises on purpose; its message names the thing and what to do next."""


class BadInputError(TonnageError):
    """The caller's input is wrong: the command line exits with 2, HTTP answers with 400."""


class NotFittingError(TonnageError):
    """A check failed or a plan does not fit: the command line exits with 1."""
