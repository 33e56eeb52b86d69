"""The merged model list of the fleet."""

from typing import Any

import orjson

from tonnage_router.fleet import Endpoint, Fleet
from tonnage_router.settings import AdapterSpec


def listed_models(endpoint: Endpoint) -> list[dict[str, Any]]:
    """The endpoint's entries under the names clients use."""
    spec = endpoint.spec
    if spec.model is None or spec.served_model is None:
        return endpoint.listed
    return [
        {**entry, "id": spec.model} if entry.get("id") == spec.served_model else _renamed_parent(entry, endpoint)
        for entry in endpoint.listed
    ]


def _renamed_parent(entry: dict[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    if entry.get("parent") == endpoint.spec.served_model:
        return {**entry, "parent": endpoint.spec.model}
    return entry


def _own_row(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "owned_by": "tonnage"}


class ModelList:
    """`GET /v1/models` over all healthy endpoints and the models in `waited_for`, which requests may wait for: first
    entry of each id wins; adapters keep `parent`."""

    def __init__(self, fleet: Fleet, adapters: list[AdapterSpec], waited_for: list[str]) -> None:
        self._fleet = fleet
        self._adapters = adapters
        self._waited_for = waited_for

    def document(self) -> bytes:
        """The OpenAI list, as bytes."""
        entries: dict[str, dict[str, Any]] = {}
        for endpoint in self._fleet:
            if endpoint.candidate.healthy:
                for entry in listed_models(endpoint):
                    entries.setdefault(entry["id"], entry)
                if endpoint.spec.model and not endpoint.listed:
                    entries.setdefault(endpoint.spec.model, _own_row(endpoint.spec.model))
        for name in self._waited_for:
            entries.setdefault(name, _own_row(name))
        for adapter in self._adapters:
            if adapter.parent in entries:
                entries.setdefault(adapter.name, _own_row(adapter.name) | {"parent": adapter.parent})
        return orjson.dumps({"object": "list", "data": list(entries.values())})

    def only(self) -> str | None:
        """The one model of the fleet, for requests that name none; None when there are several."""
        names = self._fleet.seen_models.difference(adapter.name for adapter in self._adapters)
        return next(iter(names)) if len(names) == 1 else None
