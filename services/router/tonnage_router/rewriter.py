"""What changes between the client's request and the engine's: model alias, usage option, cache salt, and headers."""

from typing import TYPE_CHECKING, Final

from tonnage_router.body import splice
from tonnage_router.body.prefill import for_decode
from tonnage_router.body.sse import UsageStripper
from tonnage_router.ranks import HEADER
from tonnage_router.wire.headers import NONE

if TYPE_CHECKING:
    from tonnage_router.body.facts import BodyFacts
    from tonnage_router.exchange import Exchange
    from tonnage_router.fleet import Endpoint

WITH_STREAM_OPTIONS: Final = frozenset({b"/v1/chat/completions", b"/v1/completions"})
RANK: Final = frozenset({HEADER})
KEY: Final = frozenset({b"authorization", b"x-api-key"})
KEY_AND_ENCODING: Final = KEY | {b"accept-encoding"}


class Rewriter:
    """Edits by splices: bytes outside an edit are the client's."""

    def __init__(self, *, keys_are_tenants: bool) -> None:
        self._keys_are_tenants = keys_are_tenants

    def prepare(self, exchange: "Exchange") -> None:
        """Edits that do not depend on the endpoint: usage is asked for, and an isolated tenant's salt is set."""
        account, facts = exchange.account, exchange.facts
        if account is None:
            return
        spec = account.spec
        edits: list[splice.Edit] = []
        if spec.prefix_isolation:
            salt = f"{spec.name}/{facts.salt}" if facts.salt is not None else spec.name
            facts.salt = salt
            edits += splice.set_text(exchange.body, "cache_salt", salt, absent=_lacks(facts, "cache_salt"))
        asked = facts.include_usage or not facts.stream or exchange.incoming.path not in WITH_STREAM_OPTIONS
        if spec.counts_tokens and not asked:
            edits += splice.ask_usage(exchange.body, absent=_lacks(facts, "stream_options"))
            exchange.stripper = UsageStripper()
        if edits:
            exchange.body = splice.apply(exchange.body, edits)

    def body_for(self, exchange: "Exchange", endpoint: "Endpoint") -> bytes:
        """The body under the model name the endpoint's engine knows."""
        body = exchange.body
        if endpoint.served_model is not None and exchange.facts.model == endpoint.known_as:
            body = splice.apply(body, splice.set_text(body, "model", endpoint.served_model))
        apart = exchange.gateway.disaggregation
        params = apart.params(exchange, endpoint) if apart is not None else None
        return body if params is None else for_decode(body, params)

    def plain_lines(self, exchange: "Exchange", endpoint: "Endpoint") -> bytes:
        """As `header_lines`, for an answer that the router itself reads: not compressed."""
        lines = self.header_lines(exchange, endpoint).split(b"\r\n")
        return b"\r\n".join(line for line in lines if not line.lower().startswith(b"accept-encoding:"))

    def header_lines(self, exchange: "Exchange", endpoint: "Endpoint") -> bytes:
        """End-to-end headers. With tenants, their keys stay here and the endpoint's own key goes instead; compressed
        answers are not asked for where usage must be read. A traced request names its own span."""
        rank = endpoint.rank
        without, trace = NONE if rank is None else RANK, exchange.trace
        if trace is None:
            kept = self._kept_lines(exchange, endpoint, without)
        else:
            kept = self._kept_lines(exchange, endpoint, without | trace.replaces) + trace.line
        return kept if rank is None else b"%b%b: %d\r\n" % (kept, HEADER, rank)

    def _kept_lines(self, exchange: "Exchange", endpoint: "Endpoint", without: frozenset[bytes]) -> bytes:
        incoming = exchange.incoming
        if not self._keys_are_tenants:
            return incoming.lines(without)
        counts = exchange.account is not None and exchange.account.spec.counts_tokens
        own = KEY_AND_ENCODING if counts else KEY
        kept = incoming.lines(without | own if without else own)
        key = endpoint.api_key
        return kept if key is None else b"%bauthorization: Bearer %b\r\n" % (kept, key.encode())


def _lacks(facts: "BodyFacts", name: str) -> bool:
    """The body is known not to have the key."""
    return facts.document is not None and name not in facts.document
