"""Cold start: weights from their source into a verified node cache, and from there to the device."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tonnage_coldstart.loader.loading import Loaded, LoadOptions

__all__ = ["load"]


def load(
    path: str | Path,
    device: str = "cuda",
    options: "LoadOptions | None" = None,
    *,
    tp_rank: int = 0,
    tp_size: int = 1,
) -> "Loaded":
    """Every tensor of the model in the directory or safetensors file `path`, on `device` ("cuda", "cuda:1", "cpu").

    With `tp_size` over 1: what rank `tp_rank` keeps under tensor parallelism, and only that is read. A staged directory
    is verified while it is read: each chunk's CRC32C against the manifest. All tensors or an error, never a part.
    Needs torch; imported here, so that the service runs without it.
    """
    from tonnage_coldstart.loader.loading import LoadOptions, load_directory

    if tp_size == 1 and tp_rank == 0:
        return load_directory(Path(path), device, options or LoadOptions())
    from tonnage_coldstart.loader.shards import load_shard

    return load_shard(Path(path), device, tp_rank, tp_size, options or LoadOptions())
