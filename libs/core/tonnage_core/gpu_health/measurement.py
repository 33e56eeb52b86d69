"""One measured point of a probe, as reports and GpuProfile documents carry it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tonnage_core.errors import BadInputError


class PointStatus(StrEnum):
    """What became of a point. Only `ok` carries a value; `wrong` carries the error that was found.

    `unsupported` (the device or the software cannot do it) and `busy` (someone else needed the GPU) are no failures.
    """

    OK = "ok"
    UNSUPPORTED = "unsupported"
    BUSY = "busy"
    ERROR = "error"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One point. `bytes` and `flops` are counted per timed call: each input read once, each output written once.

    `relative_error` is ||out - ref|| / ||ref|| against a reference in higher precision; None when the probe moves
    bytes only and compares them exactly.
    """

    name: str
    status: PointStatus
    value: float | None = None
    unit: str = ""
    bytes: int | None = None
    flops: int | None = None
    params: Mapping[str, float | str] = field(default_factory=dict)
    relative_error: float | None = None
    detail: str = ""
    context: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The point as JSON, without what is unknown."""
        found: dict[str, Any] = {"name": self.name, "status": self.status.value}
        for key in ("value", "bytes", "flops", "relative_error"):
            if (value := getattr(self, key)) is not None:
                found[key] = value
        for key in ("unit", "detail"):
            if text := getattr(self, key):
                found[key] = text
        for key in ("params", "context"):
            if table := getattr(self, key):
                found[key] = dict(table)
        return found


def measurement_from(document: Mapping[str, Any]) -> Measurement:
    """The inverse of `Measurement.document`; `BadInputError` names what is wrong. Unknown keys are ignored."""
    try:
        return Measurement(
            name=str(document["name"]),
            status=PointStatus(document["status"]),
            value=_number(document.get("value")),
            unit=str(document.get("unit", "")),
            bytes=_whole(document.get("bytes")),
            flops=_whole(document.get("flops")),
            params=dict(document.get("params", {})),
            relative_error=_number(document.get("relative_error")),
            detail=str(document.get("detail", "")),
            context=dict(document.get("context", {})),
        )
    except KeyError as error:
        raise BadInputError(f"a probe point lacks {error}: give name and status") from error
    except (TypeError, ValueError) as error:
        raise BadInputError(f"probe point {document.get('name')!r}: {error}") from error


def _number(value: object) -> float | None:
    return None if value is None else float(str(value))


def _whole(value: object) -> int | None:
    return None if value is None else int(float(str(value)))
