"""What the planner needs from outside."""

from collections.abc import Sequence
from typing import Protocol

from tonnage_core.autoscaling.observation import Outcome
from tonnage_core.errors import TonnageError
from tonnage_planner.settings import EndpointSettings


class ScrapeError(TonnageError):
    """A metrics body could not be had; `outcome` is the metric's label, `detail` the cause in words."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(f"{outcome.value}: {detail}")
        self.outcome = outcome
        self.detail = detail


class Scraper(Protocol):
    """Fetches metrics bodies."""

    async def text(self, url: str) -> str:
        """The body at `url` within the deadline and the size limit; raises `ScrapeError`."""
        ...

    async def addresses(self, url: str) -> Sequence[str]:
        """`url` once for each address of its host; raises `ScrapeError` when the name has none."""
        ...


class Poster(Protocol):
    """Asks another part to change something."""

    async def post(self, url: str) -> tuple[int, str]:
        """POST without a body: status and text of the answer; raises `ScrapeError`."""
        ...


class EndpointSource(Protocol):
    """Says which endpoints there are now."""

    def endpoints(self) -> Sequence[EndpointSettings]:
        """The current list; raises `SettingsError` when it cannot be read."""
        ...
