"""A LoraAdapter's specification."""

from dataclasses import dataclass

from tonnage_operator.reading import Reader
from tonnage_runtime.kube import Object


@dataclass(frozen=True, slots=True)
class LoraAdapterSpec:
    """What is asked for."""

    name: str
    """Also the model's name that requests say."""
    namespace: str
    server: str
    """The ModelServer, of the same namespace."""
    uri: str
    revision: str
    replicas: int | None
    """Replicas of the server that hold it; None: all."""
    tenants: tuple[str, ...]
    release_s: int
    """After its deletion, until an adapter that cannot be unloaded is given up."""

    @property
    def staged(self) -> bool:
        """Whether its files come through the node's cache; else the engine fetches them by name."""
        return not self.uri.startswith("hf://")


def read(item: Object) -> LoraAdapterSpec:
    """The specification; raises `SpecError` naming the first field that cannot be followed."""
    spec = Reader(item.get("spec"))
    metadata = item.get("metadata") or {}
    return LoraAdapterSpec(
        name=str(metadata.get("name", "")),
        namespace=str(metadata.get("namespace", "")),
        server=spec.text("model"),
        uri=spec.text("uri"),
        revision=spec.text("revision", ""),
        replicas=spec.whole("replicas", 1, 1) if spec.has("replicas") else None,
        tenants=tuple(str(one) for one in spec.items("tenants")),
        release_s=spec.whole("releaseTimeoutSeconds", 600, 1, 7 * 86_400),
    )
