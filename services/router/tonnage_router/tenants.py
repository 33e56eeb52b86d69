"""Who is asking: bearer keys to tenants, by hash; reloaded without losing balances."""

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tonnage_core.flow_control.tenants import Grant, TenantAccount, TenantSpec

if TYPE_CHECKING:
    from tonnage_router.exchange import Exchange

OUTPUT_TOKENS: Final = 256
"""Answer length assumed for the load of a request that sets no limit."""

SEEN: Final = 4096
"""Authorization lines whose account is remembered; only ones that are valid."""
SEEN_BYTES: Final = 256
"""Length of the longest such line: padded with spaces, one key could else take as much memory as heads may have."""


@dataclass(frozen=True, slots=True)
class TenantKeys:
    """A tenant and the SHA-256 hex digests of its keys."""

    spec: TenantSpec
    key_sha256: tuple[str, ...]


class Tenants:
    """Accounts by key hash. Without tenants every request is served and none is counted."""

    def __init__(self) -> None:
        self.enabled = False
        self.accounts: dict[str, TenantAccount] = {}
        self._by_digest: dict[str, TenantAccount] = {}
        self._default: TenantAccount | None = None
        self._seen: dict[bytes, TenantAccount] = {}
        """Accounts by authorization line as clients lately sent it: a look-up is cheaper than a digest."""

    def load(self, tenants: Sequence[TenantKeys], default: str | None) -> None:
        """Take a new set. A tenant whose spec is unchanged keeps its balances and what it holds."""
        accounts: dict[str, TenantAccount] = {}
        digests: dict[str, TenantAccount] = {}
        for tenant in tenants:
            old = self.accounts.get(tenant.spec.name)
            account = old if old is not None and old.spec == tenant.spec else TenantAccount(tenant.spec)
            accounts[tenant.spec.name] = account
            digests.update(dict.fromkeys(tenant.key_sha256, account))
        self.accounts, self._by_digest = accounts, digests
        self._default = accounts[default] if default is not None else None
        self._seen.clear()
        self.enabled = True

    def identify(self, authorization: bytes | None) -> TenantAccount | None:
        """The account of a bearer key; the default tenant without a key; None for a key nobody has."""
        if authorization is None:
            return self._default
        account = self._seen.get(authorization)
        if account is None:
            scheme, _, key = authorization.partition(b" ")
            if scheme.lower() != b"bearer":
                return None
            account = self._by_digest.get(hashlib.sha256(key.strip()).hexdigest())
            if account is not None and len(authorization) <= SEEN_BYTES:
                if len(self._seen) >= SEEN:
                    self._seen.clear()
                self._seen[authorization] = account
        return account


def admitted(exchange: "Exchange") -> bool:
    """Hold the request against its tenant's limits; False when it was refused."""
    facts, account = exchange.facts, exchange.account
    model = facts.model
    assert model is not None
    if account is None:
        return True
    if not account.spec.allows(model):
        exchange.fail(403, f"this key may not use model {model!r}", "model_not_allowed")
        return False
    tokens = exchange.prompt_tokens + (facts.max_tokens or OUTPUT_TOKENS) * facts.samples
    found = account.admit(tokens, time.monotonic())
    if isinstance(found, Grant):
        exchange.grant = found
        return True
    metrics = exchange.gateway.metrics
    metrics.count(metrics.tenant_refusals, (metrics.tenants.label(account.spec.name), found.limit.value))
    if found.retry_after_s is None:
        exchange.fail(400, f"the request needs {tokens} tokens; this key may hold fewer", "request_too_large")
    else:
        wait = max(1, math.ceil(found.retry_after_s))
        exchange.fail(429, f"over {found.limit.value}; try again in {wait} s", "rate_limit_exceeded", wait)
    return False
