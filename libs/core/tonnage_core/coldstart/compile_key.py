"""Which compiled code fits which engine start: the same engine, libraries, GPU, model and flags, or none."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from tonnage_core.errors import BadInputError

NOT_COMPILED = frozenset(
    {"host", "port", "served-model-name", "api-key", "root-path", "model", "uvicorn-log-level", "allowed-origins"}
    | {"ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "load-format", "model-loader-extra-config", "download-dir"}
)
"""Engine arguments that no compiled code depends on. The model is a part of the key by its digest; any other argument
counts, known or not: a miss costs time, code for other arguments costs the start."""


def engine_flags(arguments: Sequence[str]) -> dict[str, str]:
    """The flags of an engine's command line that count: `--name value`, `--name=value` and `--name` alone ("")."""
    flags: dict[str, str] = {}
    for index, argument in enumerate(arguments):
        name, given, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not name or name.replace("_", "-") in NOT_COMPILED:
            continue
        after = arguments[index + 1] if index + 1 < len(arguments) else "--"
        flags[name.replace("_", "-")] = value if given else "" if after.startswith("--") else after
    return flags


@dataclass(frozen=True, slots=True)
class CompileKey:
    """What compiled code depends on. Empty text is unknown and refused: unknown fits nothing."""

    engine: str
    """Kind and version, as `vllm:0.32.0`."""
    torch: str
    gpu: str
    """Product and compute capability, as `NVIDIA H200 sm_90`."""
    driver: str
    """CUDA driver or runtime version."""
    model: str
    """Digest of the model's `config.json`."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Engine arguments that change what is compiled: parallel sizes, dtype, lengths, compilation level."""

    def __post_init__(self) -> None:
        unknown = [name for name in ("engine", "torch", "gpu", "driver", "model") if not getattr(self, name).strip()]
        if unknown:
            raise BadInputError(
                f"compile cache: {', '.join(unknown)} unknown; name it, as code for another one may crash"
            )

    @property
    def digest(self) -> str:
        """32 hex digits; equal exactly for equal keys, whatever the order of the flags."""
        fields = asdict(self)
        fields["flags"] = dict(self.flags)
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def document(self) -> dict[str, object]:
        """The fields, for a person who asks what an entry is for."""
        return {**asdict(self), "flags": dict(self.flags), "digest": self.digest}
