"""Tenants in a YAML file: hashes of keys, never keys."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from tonnage_core.flow_control.tenants import TenantSpec
from tonnage_router.tenants import TenantKeys
from tonnage_runtime.errors import SettingsError
from tonnage_runtime.settings import Settings, read_yaml, validated

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class TenantRow(Settings):
    """One tenant as operators write it."""

    name: str
    key_sha256: Digest | list[Digest]
    """Hex SHA-256 of the bearer key, or of each of several."""
    weight: float = Field(default=1.0, ge=1e-3, le=1e3)
    priority: int = 0
    requests_per_s: float | None = Field(default=None, gt=0)
    tokens_per_min: float | None = Field(default=None, gt=0)
    concurrent_tokens: int | None = Field(default=None, gt=0)
    models: list[str] = Field(default_factory=lambda: ["*"])
    prefix_isolation: bool = False


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
