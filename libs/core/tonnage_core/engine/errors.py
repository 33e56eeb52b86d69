"""The engine model's errors."""

from tonnage_core.errors import BadInputError


class EngineError(BadInputError):
    """A request or a configuration that the engine refuses."""


class BadEngineConfigError(EngineError):
    """An engine configuration that cannot run; the message names the field and the fix."""


class RequestTooLongError(EngineError):
    """The prompt, or the prompt and the output asked for, exceed what the engine can hold.

    Attributes are tokens: `prompt_tokens`, `output_tokens` and `limit`, the largest sum that would be accepted.
    """

    def __init__(self, message: str, *, prompt_tokens: int, output_tokens: int, limit: int) -> None:
        super().__init__(message)
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.limit = limit


class DuplicateRequestError(EngineError):
    """A request id that is already in the engine."""


class BadRequestError(EngineError):
    """A request with an impossible field; the message names it."""
