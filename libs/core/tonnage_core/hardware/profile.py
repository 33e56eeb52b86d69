"""A GPU from the document that the agent measured on it: its ceilings replace the vendor's figures."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tonnage_core.errors import BadInputError
from tonnage_core.hardware.catalogue import find_gpu
from tonnage_core.hardware.collectives import all_reduce_curves
from tonnage_core.hardware.spec import GpuSpec, UnknownGpuError
from tonnage_core.units import GIB

CEILINGS = {
    "hbm_gbps": ("hbm_read_gbps", "hbm_copy_gbps"),
    "bf16_tflops": ("bf16_tflops",),
    "fp8_tflops": ("fp8_tflops",),
    "int8_tops": ("int8_tops",),
    "fp4_tflops": ("fp4_tflops",),
    "pcie_gbps": ("h2d_pinned_gbps",),
}
"""Field of `GpuSpec` -> ceilings of the document that measure it, the best known one counts."""

LEAST = 1e-6
"""No figure is smaller; a time divided by one that is would be infinite."""


class ProfileError(BadInputError):
    """A GpuProfile document lacks what a plan needs or holds impossible values."""


def gpu_from_profile(document: Mapping[str, Any]) -> GpuSpec:
    """The GPU a `tonnage.gpu_profile/1` document describes. A ceiling that is absent keeps the vendor's figure."""
    name = document.get("name") or document.get("product")
    if not isinstance(name, str) or not name:
        raise ProfileError("the GpuProfile has no name; run `tonnage probe` again")
    base = _base(document, name)
    ceilings = document.get("ceilings")
    _mapping("ceilings", ceilings)
    _mapping("curves", document.get("curves"))
    measured: dict[str, Any] = {}
    for field, sources in CEILINGS.items():
        values = [_positive(ceilings, source) for source in sources]
        known = [value for value in values if value is not None]
        if known:
            measured[field] = max(known)
    size = _positive(document, "memory_bytes")
    if size is not None:
        measured["memory_gib"] = size / GIB
    measured["all_reduces"] = all_reduce_curves(document)
    return replace(base, source=f"measured {document.get('measured_at', 'at an unknown time')}", **measured)


def _base(document: Mapping[str, Any], name: str) -> GpuSpec:
    try:
        return find_gpu(name)
    except UnknownGpuError:
        size, read = _positive(document, "memory_bytes"), _positive(document.get("ceilings"), "hbm_read_gbps")
        flops = _positive(document.get("ceilings"), "bf16_tflops")
        if size is None or read is None or flops is None:
            raise
        return GpuSpec(name, (), size / GIB, read, flops)


def _mapping(name: str, value: object) -> None:
    """Absent is unknown; anything but names with values is a broken document."""
    if value is not None and not isinstance(value, Mapping):
        raise ProfileError(f"the GpuProfile's {name} are {str(value)[:40]!r}; names with values are expected")


def _positive(values: Any, name: str) -> float | None:
    """A positive finite number, or None when absent; a wrong one is an error."""
    value = values.get(name) if isinstance(values, Mapping) else None
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not LEAST <= value < 1e18:
        raise ProfileError(f"the GpuProfile's {name} is {str(value)[:40]!r}; it must be a positive number")
    return float(value)
