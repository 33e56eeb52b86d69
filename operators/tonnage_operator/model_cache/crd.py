"""A ModelCache's specification."""

from collections.abc import Mapping
from dataclasses import dataclass

from tonnage_operator.reading import Reader, SpecError
from tonnage_runtime.kube import Object

IMAGES_MOST = 20
NAME_MOST = 63
"""Of a label's value."""


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
    images = tuple(spec.items("prePullImages"))
    if not all(isinstance(one, str) and one for one in images):
        raise SpecError("spec.prePullImages: each item is an image's name")
    found = ModelCacheSpec(
        name=str(metadata.get("name", "")),
        namespace=str(metadata.get("namespace", "")),
        uri=spec.text("uri", ""),
        revision=spec.text("revision", ""),
        nodes=spec.labels("nodeSelector"),
        images=images,
        pin=spec.flag("pin"),
        release_s=spec.whole("releaseTimeoutSeconds", 600, 1, 7 * 86_400),
    )
    if not found.uri and not images:
        raise SpecError("spec: uri or prePullImages is needed")
    if len(images) > IMAGES_MOST:
        raise SpecError(f"spec.prePullImages: at most {IMAGES_MOST}")
    if images and len(found.name) > NAME_MOST:
        raise SpecError(f"metadata.name: at most {NAME_MOST} characters, since it labels the pods that pull the images")
    return found
