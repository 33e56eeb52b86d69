"""The simulator's errors; `ApiError` is an answer to a client, shaped and worded as vLLM's."""

from typing import Any

from tonnage_core.errors import TonnageError


class SimError(TonnageError):
    """Root of the simulator's errors."""


class ApiError(SimError):
    """A request that is refused: status, type, parameter and message of the error body.

    As in vLLM the text ends in the parameter and the value, when they are given.
    """

    def __init__(
        self,
        message: str,
        *,
        parameter: str | None = None,
        value: Any = None,
        status: int = 400,
        kind: str = "BadRequestError",
        show_parameter: bool = True,
    ) -> None:
        details = []
        if parameter is not None and show_parameter:
            details.append(f"parameter={parameter}")
        if value is not None:
            details.append(f"value={value}")
        super().__init__(f"{message} ({', '.join(details)})" if details else message)
        self.status = status
        self.kind = kind
        self.parameter = parameter

    def body(self) -> dict[str, Any]:
        """The error object."""
        return {
            "error": {"message": str(self), "type": self.kind, "param": self.parameter, "code": self.status},
        }


class PlainError(SimError):
    """A request refused before the API sees it: `{"detail": …}`."""

    def __init__(self, detail: str, status: int) -> None:
        super().__init__(detail)
        self.status = status
