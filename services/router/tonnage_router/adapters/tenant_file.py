"""Tenants in a YAML file: hashes of keys, never keys."""

import re
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from tonnage_core.flow_control.tenants import TenantSpec
from tonnage_router.tenants import TenantKeys
from tonnage_runtime.errors import SettingsError
from tonnage_runtime.settings import Settings, read_yaml, validated

DIGEST = re.compile(r"[0-9a-f]{64}")
HOW = "printf %s KEY | sha256sum"


class TenantRow(Settings):
    """One tenant as operators write it."""

    name: str
    key_sha256: str | list[str]
    """Hex SHA-256 of the bearer key, or of each of several."""
    weight: float = Field(default=1.0, ge=1e-3, le=1e3)
    priority: int = 0
    requests_per_s: float | None = Field(default=None, gt=0)
    tokens_per_min: float | None = Field(default=None, gt=0)
    concurrent_tokens: int | None = Field(default=None, gt=0)
    models: list[str] = Field(default_factory=lambda: ["*"])
    prefix_isolation: bool = False

    @model_validator(mode="before")
    @classmethod
    def _has_no_key(cls, row: Any) -> Any:
        if isinstance(row, dict) and "key" in row:
            raise ValueError(f"no key is written here: replace key by key_sha256, its SHA-256, as `{HOW}` prints it")
        return row

    @field_validator("key_sha256", mode="before")
    @classmethod
    def _is_a_digest(cls, value: Any) -> Any:
        """What is none is not shown: it may be a key."""
        for number, one in enumerate(value if isinstance(value, list) else [value], 1):
            if not isinstance(one, str) or DIGEST.fullmatch(one) is None:
                which = f"entry {number} is not" if isinstance(value, list) else "not"
                raise ValueError(f"{which} 64 hex digits in lower case: write what `{HOW}` prints")
        return value


class TenantFile(Settings):
    """`tenants.yaml`."""

    tenants: list[TenantRow]
    default_tenant: str | None = None
    """Tenant of requests without a key; None: a key is required."""


def _check_keys(path: Path, rows: list[TenantRow]) -> None:
    """A key that two tenants have would be charged to whichever comes last."""
    owners: dict[str, str] = {}
    for row in rows:
        for key in [row.key_sha256] if isinstance(row.key_sha256, str) else row.key_sha256:
            owner = owners.setdefault(key, row.name)
            if owner != row.name:
                raise SettingsError(f"{path}: tenants {owner} and {row.name} have the same key: give each its own")


def read_tenants(path: Path, processes: int = 1) -> tuple[list[TenantKeys], str | None]:
    """Tenants and the default's name; `SettingsError` names what is wrong.

    Each of several `processes` behind one port gets its share of every limit.
    """
    document = read_yaml(path)
    if not isinstance(document, dict):
        raise SettingsError(f"{path}: a mapping with `tenants:` is expected")
    file = validated(TenantFile, document, str(path))
    names = [row.name for row in file.tenants]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SettingsError(f"{path}: tenant {twice} is listed twice")
    _check_keys(path, file.tenants)
    if file.default_tenant is not None and file.default_tenant not in names:
        raise SettingsError(f"{path}: default_tenant {file.default_tenant} is not among the tenants")
    return [_keys(row, processes) for row in file.tenants], file.default_tenant


def _keys(row: TenantRow, processes: int) -> TenantKeys:
    def share(limit: float | None) -> float | None:
        return None if limit is None else limit / processes

    held = row.concurrent_tokens
    spec = TenantSpec(
        name=row.name,
        weight=row.weight,
        priority=row.priority,
        requests_per_s=share(row.requests_per_s),
        tokens_per_min=share(row.tokens_per_min),
        concurrent_tokens=None if held is None else max(1, held // processes),
        models=tuple(row.models),
        prefix_isolation=row.prefix_isolation,
    )
    return TenantKeys(spec, (row.key_sha256,) if isinstance(row.key_sha256, str) else tuple(row.key_sha256))
