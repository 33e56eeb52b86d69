"""vLLM's load format `tonnage`: a staged directory, verified while it is read, one file on the device at a time.

vLLM's own layers cut the tensors, so under tensor parallelism each rank reads whole files; the page cache serves all
ranks but the first. A file that fails its check ends the start of the engine: no partial model is ever served.
"""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from tonnage_coldstart.loader.loading import LoadOptions, load_directory
from tonnage_coldstart.loader.weights import open_weights
from tonnage_core.errors import BadInputError

log = logging.getLogger("tonnage.coldstart.loader")
FORMAT = "tonnage"
OPTIONS = {"threads": int, "verify": bool, "direct": bool, "drop_behind": bool, "require_verified": bool}
_registered: list[type] = []


def register_format() -> None:
    """Make the format known to vLLM, once a process."""
    if not _registered:
        _registered.append(register_model_loader(FORMAT)(TonnageLoader))


class TonnageLoader(BaseModelLoader):  # type: ignore[misc]
    """Loads from the node cache, or from any directory of safetensors (then nothing can be verified)."""

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        given = dict(load_config.model_loader_extra_config or {})
        self._require = bool(given.get("require_verified", False))
        self._options = options_from(given)

    def download_model(self, model_config: Any) -> None:
        """The cold-start service has staged it; only whether it is there is checked."""
        _directory(model_config)

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Feed every tensor to the model's own loading."""
        path = _directory(model_config)
        started = time.perf_counter()
        device = str(next(model.parameters()).device)
        model.load_weights(tensors(path, device, self._options, require_verified=self._require))
        log.info("loaded", extra={"path": str(path), "seconds": time.perf_counter() - started})


def tensors(
    path: Path, device: str, options: LoadOptions, *, require_verified: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor of each weight, file after file; one file's memory is given back before the next is read.

    Raises `TonnageError` before the first tensor when index and files disagree.
    """
    weights = open_weights(path, direct=False)
    names, checkable = [file.name for file in weights.files], weights.checkable
    weights.close()
    if require_verified and not checkable:
        raise BadInputError(f"{path}: no checksums, and require_verified is set: stage it with `tonnage stage`")
    for name in names:
        loaded = load_directory(path / name, device, options)
        while loaded:
            yield loaded.popitem()


def options_from(given: dict[str, Any]) -> LoadOptions:
    """Options from `--model-loader-extra-config`. Raises `BadInputError` for what is not one."""
    for name, value in given.items():
        kind = OPTIONS.get(name)
        if kind is None:
            raise BadInputError(f"model_loader_extra_config: {name!r} is unknown; known: {', '.join(OPTIONS)}")
        if type(value) is not kind:
            raise BadInputError(f"model_loader_extra_config: {name} is {value!r}; a {kind.__name__} is expected")
    return LoadOptions(**{name: value for name, value in given.items() if name != "require_verified"})


def _directory(model_config: Any) -> Path:
    path = Path(getattr(model_config, "model_weights", "") or model_config.model)
    if not path.is_dir():
        raise BadInputError(f"{path}: --load-format {FORMAT} needs a staged directory: run `tonnage stage` first")
    return path
