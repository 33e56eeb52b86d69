"""What compiled code depends on, found in this environment: engine and torch by their packages, the GPU by NVML."""

import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tonnage_core.errors import BadInputError


def installed(package: str, option: str) -> str:
    """Version of a package of this environment; `BadInputError` names the option that says it instead."""
    try:
        return version(package)
    except PackageNotFoundError as error:
        raise BadInputError(f"{package} is not installed beside tonnage: say its version with {option}") from error


def model_digest(model: str) -> str:
    """SHA-256 of the directory's `config.json`; of the name itself where it is no directory."""
    folder = Path(model)
    if not folder.is_dir():
        return hashlib.sha256(model.encode()).hexdigest()
    try:
        return hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    except OSError as error:
        raise BadInputError(f"--model {model}: config.json cannot be read: {error.strerror}") from error


def detected_gpu() -> str:
    """Product and compute capability of the first GPU, as `NVIDIA H200 sm_90`."""
    nvml, device = _first("--gpu")
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(device)
    return f"{nvml.nvmlDeviceGetName(device)} sm_{major}{minor}"


def detected_driver() -> str:
    """Version of the driver."""
    nvml, _ = _first("--driver")
    return str(nvml.nvmlSystemGetDriverVersion())


def _first(option: str) -> tuple[Any, Any]:
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
    except ImportError as error:
        raise BadInputError(f"nvidia-ml-py is not installed: say {option}") from error
    except pynvml.NVMLError as error:
        raise BadInputError(f"no GPU can be asked ({error}): say {option}") from error
