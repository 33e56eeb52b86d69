"""Tenant files for tests, and the keys in them."""

import hashlib
from pathlib import Path
from typing import Any

import yaml

ROW = {"weight": 1, "models": ["m"]}


def write(path: Path, default: str | None = None, **tenants: dict[str, Any]) -> Path:
    rows = [
        {"name": name, "key_sha256": hashlib.sha256(f"key-{name}".encode()).hexdigest(), **ROW, **fields}
        for name, fields in tenants.items()
    ]
    file = path / "tenants.yaml"
    file.write_text(yaml.safe_dump({"tenants": rows, "default_tenant": default}))
    return file


def key(name: str) -> bytes:
    return b"Authorization: Bearer key-%b\r\n" % name.encode()
