"""GpuProfile documents in a directory: what the GPU agent measured."""

import logging
from pathlib import Path

import orjson

log = logging.getLogger(__name__)


def read_ceilings(directory: Path) -> dict[str, dict[str, float]]:
    """Ceilings by `node/index` of every `tonnage.gpu_profile/1` document in `*.json`; what is not one is skipped with a
    warning, since a missing measurement is unknown and no reason to stop routing.
    """
    found: dict[str, dict[str, float]] = {}
    for path in sorted(directory.glob("*.json")):
        try:
            document = orjson.loads(path.read_bytes())
            key = f"{document['node']}/{document['index']}"
            ceilings = {k: float(v) for k, v in document["ceilings"].items() if isinstance(v, int | float)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("not a GPU profile", extra={"path": str(path), "problem": repr(error)})
            continue
        found[key] = ceilings
    return found
