"""A custom resource's schema as server-side apply sees it."""

from typing import Any


def closed(schema: Any) -> Any:
    """The schema with what it does not declare refused, unless it keeps unknown fields."""
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema:
        made["properties"] = {key: closed(value) for key, value in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            made["additionalProperties"] = False
    return made
