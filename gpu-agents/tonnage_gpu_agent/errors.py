"""Errors of the GPU agent."""

from tonnage_core.errors import BadInputError, TonnageError


class AgentError(TonnageError):
    """Any error of the GPU agent."""


class NoGpuError(AgentError):
    """There is no GPU to watch; the message says why. The agent then runs in its no-GPU mode."""


class FieldUnsupportedError(AgentError):
    """This GPU or driver has no such reading."""


class DeviceLostError(AgentError):
    """The GPU does not answer any more (off the bus, being reset, driver fault)."""


class DriverHungError(AgentError):
    """A driver call does not return."""


class UnknownProbeError(BadInputError):
    """No probe has this name."""


class UnknownGpuError(BadInputError):
    """No GPU has this index or uuid."""


class ProbeRefusedError(BadInputError):
    """A probe run cannot start now; `code` is busy, mig, cooldown, budget, lease or no_gpu."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
