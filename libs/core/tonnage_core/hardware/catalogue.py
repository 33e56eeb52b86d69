"""Find a GPU by name or alias, whatever the case, spaces, dashes or underscores."""

from tonnage_core.hardware.gpus import GPUS
from tonnage_core.hardware.spec import GpuSpec, UnknownGpuError


def _key(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


_BY_KEY: dict[str, GpuSpec] = {_key(alias): gpu for gpu in GPUS for alias in (*gpu.aliases, gpu.name)}


def names_card(name: str, gpu: GpuSpec) -> bool:
    """Whether `name` is that card's, or one of its aliases, spelt freely."""
    return bool(_key(name)) and _key(name) in map(_key, (gpu.name, *gpu.aliases))


def find_gpu(name: str) -> GpuSpec:
    """The GPU of that name or alias; `UnknownGpuError` lists the names when there is none."""
    found = _BY_KEY.get(_key(name))
    if found is None:
        names = ", ".join(gpu.name for gpu in GPUS)
        raise UnknownGpuError(f"unknown GPU {name[:80]!r}; use one of {names}")
    return found
