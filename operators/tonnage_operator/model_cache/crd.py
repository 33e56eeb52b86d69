"""A ModelCache's specification."""

from collections.abc import Mapping
from dataclasses import dataclass

from tonnage_operator.reading import Reader, SpecError
from tonnage_runtime.kube import Object

IMAGES_MOST = 20


@dataclass(frozen=True, slots=True)
class ModelCacheSpec:
    """What is asked for."""

    name: str
    namespace: str
    uri: str
    """Empty: images alone."""
    revision: str
    nodes: Mapping[str, str]
    """Labels that a node must have; empty: every node with a cold-start service."""
    images: tuple[str, ...]
    pin: bool
    release_s: int


def read(item: Object) -> ModelCacheSpec:
    """The specification; raises `SpecError` naming the first field that cannot be followed."""
    spec = Reader(item.get("spec"))
    metadata = item.get("metadata") or {}
    images = tuple(str(one) for one in spec.items("prePullImages"))
    found = ModelCacheSpec(
        name=str(metadata.get("name", "")),
        namespace=str(metadata.get("namespace", "")),
        uri=spec.text("uri", ""),
        revision=spec.text("revision", ""),
        nodes=spec.mapping("nodeSelector"),
        images=images,
        pin=spec.flag("pin"),
        release_s=spec.whole("releaseTimeoutSeconds", 600, 1),
    )
    if not found.uri and not images:
        raise SpecError("spec: uri or prePullImages is needed")
    if len(images) > IMAGES_MOST:
        raise SpecError(f"spec.prePullImages: at most {IMAGES_MOST}")
    return found
