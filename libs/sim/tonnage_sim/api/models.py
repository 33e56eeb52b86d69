"""The models an engine serves: its own under one or more names, and the adapters loaded into it."""

import secrets
from dataclasses import dataclass
from typing import Any

from tonnage_sim.errors import ApiError


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter by name."""

    name: str
    path: str


class Models:
    """Names of the base model and of adapters."""

    def __init__(self, names: tuple[str, ...], root: str, max_model_len: int) -> None:
        self.names = names
        self.adapters: dict[str, Adapter] = {}
        self._root = root
        self._max_model_len = max_model_len

    @property
    def base(self) -> str:
        """The base model's first name."""
        return self.names[0]

    def resolve(self, name: str | None) -> tuple[str, Adapter | None]:
        """The name to show and the adapter to use; raises `ApiError` (404) for a name that is not served."""
        if not name or name in self.names:
            return self.base, None
        adapter = self.adapters.get(name)
        if adapter is None:
            raise ApiError(
                f"The model `{name}` does not exist. Valid aliases: {', '.join(self.names)}.",
                parameter="model",
                status=404,
                kind="NotFoundError",
                show_parameter=False,
            )
        return adapter.name, adapter

    def listed(self, wall_s: int) -> dict[str, Any]:
        """The document of /v1/models."""
        cards = [self._card(name, self._root, None, self._max_model_len, wall_s) for name in self.names]
        cards += [self._card(a.name, a.path, self.base, None, wall_s) for a in self.adapters.values()]
        return {"object": "list", "data": cards}

    @staticmethod
    def _card(name: str, root: str, parent: str | None, max_model_len: int | None, wall_s: int) -> dict[str, Any]:
        permission = {
            "id": f"modelperm-{secrets.token_hex(8)}",
            "object": "model_permission",
            "created": wall_s,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": name,
            "object": "model",
            "created": wall_s,
            "owned_by": "vllm",
            "root": root,
            "parent": parent,
            "max_model_len": max_model_len,
            "permission": [permission],
        }
