"""Which files make a snapshot, and whether they agree with each other."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tonnage_core.coldstart.errors import InconsistentSnapshotError
from tonnage_core.coldstart.file_names import INDEX_NAME, MANIFEST_NAME, safe_name

WEIGHTS = ".safetensors"
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf", ".tflite", ".ot", ".onnx_data")
"""Copies of the same weights in other formats: not staged beside safetensors."""
NOT_STAGED = (".lock", ".incomplete", ".part", ".tmp", ".md5", ".sha256", "~")
OTHER_FOLDERS = ("original", "metal", "onnx", "openvino", "coreml", "flax", "tf", "runs")
"""Folders that hubs keep other formats and training logs in."""
USUAL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "adapter_config.json",
    "hf_quant_config.json",
    "params.json",
)
"""What a model directory holds beside its weights; asked for one by one where a source has no listing."""
SINGLE_WEIGHTS = ("model.safetensors", "adapter_model.safetensors", "consolidated.safetensors")
MAX_FILES = 20_000


def select(names: Iterable[str]) -> tuple[str, ...]:
    """The names of a listing that make the snapshot, sorted: safetensors and every file that is not other weights.

    Hidden files, lock and partial files are left out. Raises `UnsafeNameError` for a name that leaves its directory and
    `InconsistentSnapshotError` when no file is left or there are over 20,000.
    """
    kept = sorted({safe_name(name) for name in names if _wanted(name)})
    if not any(name.endswith(WEIGHTS) for name in kept):
        raise InconsistentSnapshotError(
            f"no {WEIGHTS} file among {len(kept)} files: give the directory that holds the model's weights"
        )
    if len(kept) > MAX_FILES:
        raise InconsistentSnapshotError(f"{len(kept)} files, over the limit of {MAX_FILES}: is this one model?")
    return tuple(kept)


def _wanted(name: str) -> bool:
    parts = name.split("/")
    if ".." not in parts and any(part.startswith(".") for part in parts):
        return False
    if parts[0] in OTHER_FOLDERS and len(parts) > 1:
        return False
    return name != MANIFEST_NAME and not name.endswith(NOT_STAGED) and not name.endswith(OTHER_WEIGHTS)


def parse_index(raw: bytes, where: str) -> Mapping[str, str]:
    """The weight map of `model.safetensors.index.json`: tensor -> shard. Raises with `where` named when unusable."""
    document = parse_json(raw, where)
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise InconsistentSnapshotError(f"{where}: no weight_map: not an index of safetensors shards")
    for shard in set(map(str, weight_map.values())):
        safe_name(shard)
    if not all(isinstance(shard, str) for shard in weight_map.values()):
        raise InconsistentSnapshotError(f"{where}: a shard's name is not text")
    return weight_map


def parse_json(raw: bytes, where: str) -> Any:
    """JSON, or one error that says what came instead, as a sign-in page."""
    if raw.lstrip()[:1] == b"<":
        raise InconsistentSnapshotError(f"{where}: HTML came instead of JSON: is a sign-in or a proxy in the way?")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InconsistentSnapshotError(f"{where}: not JSON ({str(error)[:120]})") from error


def require_shards(weight_map: Mapping[str, str], names: Iterable[str]) -> None:
    """Raise when the index names shards the source does not have, before anything is fetched."""
    missing = sorted(set(weight_map.values()) - set(names))
    if missing:
        raise InconsistentSnapshotError(
            f"{INDEX_NAME} names {len(missing)} shards that are not there: {', '.join(missing[:5])}"
            + (", …" if len(missing) > 5 else "")
        )


def require_agreement(weight_map: Mapping[str, str], held: Mapping[str, Iterable[str]]) -> None:
    """Raise when a tensor of the index is not in the shard it names. `held` is shard -> its tensors' names."""
    inside = {shard: set(names) for shard, names in held.items()}
    wrong = [name for name, shard in weight_map.items() if shard in inside and name not in inside[shard]]
    if wrong:
        name = min(wrong)
        elsewhere = sorted(shard for shard, names in inside.items() if name in names)
        hint = f"it is in {elsewhere[0]}" if elsewhere else "it is in no shard"
        raise InconsistentSnapshotError(
            f"{INDEX_NAME} puts tensor {name!r} in {weight_map[name]}, {hint} ({len(wrong)} tensors disagree)"
        )
