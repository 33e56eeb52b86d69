"""Cold start: weights from their source into a verified node cache, and from there to the device."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tonnage_coldstart.loader.loading import Loaded, LoadOptions

__all__ = ["load"]


def load(path: str | Path, device: str = "cuda", options: "LoadOptions | None" = None) -> "Loaded":
    """Every tensor of the model in the directory or safetensors file `path`, on `device` ("cuda", "cuda:1", "cpu").

    A staged directory is verified while it is read: each chunk's CRC32C against the manifest. All tensors or an error,
    never a part. Needs torch; imported here, so that the service runs without it.
    """
    from tonnage_coldstart.loader.loading import LoadOptions, load_directory

    return load_directory(Path(path), device, options or LoadOptions())
