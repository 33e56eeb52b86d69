"""Tenants: what each may use, what it holds, and settlement of estimates with real usage."""

from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from tonnage_core.flow_control.token_bucket import TokenBucket

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """A tenant's limits; None is unlimited. `models` are names or patterns (`lora-*`)."""

    name: str
    weight: float = 1.0
    priority: int = 0
    """Higher is served first."""
    requests_per_s: float | None = None
    tokens_per_min: float | None = None
    concurrent_tokens: int | None = None
    models: tuple[str, ...] = ("*",)
    prefix_isolation: bool = False

    def allows(self, model: str) -> bool:
        """Whether the tenant may use `model`."""
        return any(pattern == "*" or fnmatchcase(model, pattern) for pattern in self.models)

    @property
    def counts_tokens(self) -> bool:
        """Whether real usage must be read from every answer."""
        return self.tokens_per_min is not None or self.concurrent_tokens is not None


class Limit(StrEnum):
    """The limit a refusal names."""

    REQUESTS = "requests_per_s"
    TOKENS = "tokens_per_min"
    CONCURRENT = "concurrent_tokens"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Over a limit. `retry_after_s` is when a request of this size fits, None when it never will."""

    limit: Limit
    retry_after_s: float | None


class Grant:
    """What an admitted request holds. `settle` ends it; a second call does nothing."""

    __slots__ = ("account", "settled", "tokens")

    def __init__(self, account: "TenantAccount", tokens: int) -> None:
        self.account = account
        self.tokens = tokens
        self.settled = False

    def settle(self, used_tokens: int | None, now: float) -> None:
        """The request ended having used `used_tokens` (None: unknown, the estimate stands)."""
        if self.settled:
            return
        self.settled = True
        self.account.settle(self.tokens, used_tokens, now)


@dataclass(slots=True, eq=False)
class TenantAccount:
    """One tenant's buckets and what is in flight."""

    spec: TenantSpec
    held_tokens: int = 0
    used_tokens: int = 0
    taken_tokens: int = 0
    """Tokens taken from the bucket here, net of what was given back: what other replicas must charge too."""
    taken_requests: int = 0
    peer_held_tokens: int = 0
    """Tokens that requests through other replicas hold."""
    _requests: TokenBucket | None = field(init=False)
    _tokens: TokenBucket | None = field(init=False)

    def __post_init__(self) -> None:
        spec = self.spec
        self._requests = None
        self._tokens = None
        if spec.requests_per_s is not None:
            self._requests = TokenBucket(spec.requests_per_s, max(1.0, spec.requests_per_s))
        if spec.tokens_per_min is not None:
            self._tokens = TokenBucket(spec.tokens_per_min / MINUTE_S, spec.tokens_per_min)

    def admit(self, tokens: int, now: float) -> Grant | Refusal:
        """Reserve for a request estimated at `tokens` (prompt and answer), or say which limit it is over."""
        spec = self.spec
        held = self.held_tokens + self.peer_held_tokens
        if spec.concurrent_tokens is not None and held + tokens > spec.concurrent_tokens:
            alone = tokens > spec.concurrent_tokens
            return Refusal(Limit.CONCURRENT, None if alone else 1.0)
        if self._requests is not None and (wait := self._requests.wait_s(1.0, now)) > 0:
            return Refusal(Limit.REQUESTS, wait)
        if self._tokens is not None:
            if (wait := self._tokens.wait_s(tokens, now)) > 0:
                return Refusal(Limit.TOKENS, wait)
            self._tokens.take(tokens, now)
        if self._requests is not None:
            self._requests.take(1.0, now)
        self.held_tokens += tokens
        self.taken_tokens += tokens
        self.taken_requests += 1
        return Grant(self, tokens)

    def settle(self, reserved: int, used: int | None, now: float) -> None:
        """Give back the reservation and charge what was used."""
        self.held_tokens -= reserved
        charged = reserved if used is None else used
        self.used_tokens += charged
        self.taken_tokens += charged - reserved
        if self._tokens is not None:
            self._tokens.give(reserved - charged, now)

    def charge_peers(self, tokens: int, requests: int, now: float) -> None:
        """Other replicas took this since they were last heard (negative: gave back). One charge is at most a full
        bucket, so that what was admitted apart during an outage is paid back in a burst's time, not in an outage's."""
        if self._tokens is not None:
            self._tokens.give(-min(tokens, int(self._tokens.burst)), now)
        if self._requests is not None:
            self._requests.give(-min(requests, int(self._requests.burst)), now)
