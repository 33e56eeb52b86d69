"""The settings that every request is held against, as plain attributes: a settings object is slow to read."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tonnage_router.settings import RouterSettings


class Limits:
    """See the settings of the same names. They do not change while the router runs."""

    __slots__ = (
        "block_bytes",
        "body_bytes",
        "buffered_bytes",
        "contended_prefill_tokens",
        "decisions_kept",
        "endpoint_prefill_tokens",
        "endpoint_requests",
    )

    def __init__(self, settings: "RouterSettings") -> None:
        self.block_bytes = settings.block_bytes
        self.body_bytes = settings.body_bytes
        self.buffered_bytes = settings.buffered_bytes
        self.contended_prefill_tokens = settings.contended_prefill_tokens
        self.decisions_kept = settings.decisions_kept
        self.endpoint_prefill_tokens = settings.endpoint_prefill_tokens
        self.endpoint_requests = settings.endpoint_requests
