"""How far the replay is, for the fleet's status page and the console."""

from typing import Any

from tonnage_loadgen.replay import OnProgress, Progress


class ReplayStanding:
    """The run under way or the last one; None before the first."""

    def __init__(self) -> None:
        self._document: dict[str, Any] | None = None

    def document(self) -> dict[str, Any] | None:
        """trace, policy, state (running or done), speed, and requests: total, sent, done, in_flight, errors."""
        return self._document

    def follow(self, trace: str, policy: str, total: int, speed: float, then: OnProgress | None) -> OnProgress:
        """Where the run tells how it stands; `then` is told as well."""
        base = {"trace": trace, "policy": policy, "speed": speed, "state": "running", "total": total}
        self._document = {**base, "sent": 0, "done": 0, "in_flight": 0, "errors": 0}

        def on_progress(at: Progress) -> None:
            counted = {"sent": at.sent, "done": at.done, "in_flight": at.in_flight, "errors": at.errors}
            self._document = {**base, **counted, "total": at.total}
            if then is not None:
                then(at)

        return on_progress

    def ended(self) -> None:
        """The run is over."""
        if self._document is not None:
            self._document = {**self._document, "state": "done", "in_flight": 0}
