"""The cold-start service of a node: what its cache holds, staging, pins."""

from tonnage_operator.actions import PinCall, StageCall
from tonnage_operator.adapters.http import Caller, CallError
from tonnage_operator.nodes import NodeView, Snapshot


class HttpColdstart:
    """Cold-start services by their pods' addresses."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def look(self, url: str) -> NodeView:
        """What the service says now; one that does not answer has unknown snapshots."""
        try:
            entries = self._caller.json("GET", f"{url}/v1/cache").get("entries") or []
            jobs = self._caller.json("GET", f"{url}/v1/stage").get("jobs") or []
            snapshots = {
                str(one["uri"]): Snapshot(
                    str(one["key"]), str(one["path"]), str(one.get("revision") or ""), bool(one.get("pinned"))
                )
                for one in entries
            }
            states = {str(one["uri"]): (str(one["state"]), _message(one.get("error"))) for one in jobs}
        except (CallError, KeyError, TypeError, AttributeError):
            return NodeView(url)
        return NodeView(url, snapshots, states)

    def stage(self, action: StageCall) -> None:
        """Ask for it; a job that runs already is joined."""
        self._caller.json("POST", f"{action.url}/v1/stage", {"uri": action.uri, "pin": action.pin})

    def pin(self, action: PinCall) -> None:
        """Pin or unpin; a snapshot that is gone needs no unpinning."""
        try:
            self._caller.text("PUT", f"{action.url}/v1/cache/{action.key}/pin", {"pinned": action.pinned})
        except CallError as error:
            if action.pinned or error.status != 404:
                raise


def _message(error: object) -> str:
    return str(error.get("message", "")) if isinstance(error, dict) else ""
