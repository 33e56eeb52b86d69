"""What a pod tells of its start: provisioning, image pulls, staging containers, readiness. Times in Unix seconds.

From the pod's own record (creation, conditions, container states) and, where they are still kept, its events, which
alone know when an image was pulled. What is not told stays unknown.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tonnage_core.coldstart.phases import Span
from tonnage_core.errors import BadInputError

FETCHERS = ("stage", "fetch", "storage-initializer", "model-loader")
"""Init containers that bring the weights."""


@dataclass(frozen=True, slots=True)
class PodStart:
    """The spans that the pod tells, and the instants between which the engine starts."""

    name: str
    pool: str
    spans: tuple[Span, ...]
    started_s: float | None
    """The engine's container started."""
    ready_s: float | None


def pod_start(
    pod: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]] = (),
    *,
    container: str = "",
    fetchers: Sequence[str] = FETCHERS,
) -> PodStart:
    """The start of `pod`; `container` names the engine's, by default the first. Raises `BadInputError`."""
    meta, status = _part(pod, "metadata"), _part(pod, "status")
    if pod.get("kind") not in (None, "Pod") or "name" not in meta:
        raise BadInputError(
            "not a pod: kind Pod with metadata.name is expected, as `kubectl get pod NAME -o json` says"
        )
    conditions = {one.get("type"): one for one in _listed(status, "conditions")}
    created, scheduled = _time(meta.get("creationTimestamp")), _since(conditions.get("PodScheduled"))
    own = [one for one in events if _part(one, "involvedObject").get("uid", meta.get("uid")) == meta.get("uid")]
    spans = [Span("provision", created, scheduled)]
    if any(one.get("reason") == "TriggeredScaleUp" for one in own):
        asked = min(
            filter(None, (_event_s(one) for one in own if one.get("reason") == "TriggeredScaleUp")), default=None
        )
        spans.append(Span("provision", asked, scheduled, "new node"))
    spans += _pulls(own)
    spans += _fetches(_listed(status, "initContainerStatuses"), fetchers)
    engine = _engine(_listed(status, "containerStatuses"), container)
    state = _part(engine, "state")
    started = _time(_part(state, "running").get("startedAt") or _part(state, "terminated").get("startedAt"))
    labels = _part(meta, "labels")
    pool = str(labels.get("tonnage.dev/pool") or labels.get("tonnage.dev/model-server") or "")
    return PodStart(str(meta["name"]), pool, tuple(spans), started, _since(conditions.get("Ready")))


def _pulls(events: Iterable[Mapping[str, Any]]) -> list[Span]:
    """One span an image, from its `Pulling` to its `Pulled`; none for images that were on the node."""
    begun: dict[str, float | None] = {}
    spans = []
    for event in sorted(events, key=lambda one: _event_s(one) or 0.0):
        where = str(_part(event, "involvedObject").get("fieldPath") or "")
        if event.get("reason") == "Pulling":
            begun[where] = _event_s(event)
        elif event.get("reason") == "Pulled" and where in begun:
            spans.append((begun.pop(where), _event_s(event)))
    top = [] if not spans else [Span("pull", _least(spans), max((end for _, end in spans if end), default=None))]
    return top + (
        [Span("pull", start, end, f"image {n + 1}") for n, (start, end) in enumerate(spans)] if len(spans) > 1 else []
    )


def _least(spans: Sequence[tuple[float | None, float | None]]) -> float | None:
    return min((start for start, _ in spans if start is not None), default=None)


def _fetches(containers: Iterable[Mapping[str, Any]], fetchers: Sequence[str]) -> list[Span]:
    found = []
    for one in containers:
        ended = _part(_part(one, "state"), "terminated")
        if one.get("name") in fetchers:
            found.append(Span("fetch", _time(ended.get("startedAt")), _time(ended.get("finishedAt"))))
    return found


def _engine(containers: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    named = [one for one in containers if not name or one.get("name") == name]
    if name and not named:
        known = ", ".join(str(one.get("name")) for one in containers) or "none"
        raise BadInputError(f"no container {name!r} in the pod's status; there are: {known}")
    return named[0] if named else {}


def _since(condition: Mapping[str, Any] | None) -> float | None:
    """When a condition became true; None while it is not."""
    if condition is None or condition.get("status") != "True":
        return None
    return _time(condition.get("lastTransitionTime"))


def _event_s(event: Mapping[str, Any]) -> float | None:
    return _time(event.get("eventTime") or event.get("firstTimestamp") or event.get("lastTimestamp"))


def _time(text: Any) -> float | None:
    """RFC 3339 as Unix seconds; None for what is missing. Raises `BadInputError`."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError as error:
        raise BadInputError(f"{str(text)[:40]!r} is not a time as Kubernetes writes it") from error
    if moment.tzinfo is None:
        raise BadInputError(f"{str(text)[:40]!r} has no time zone: Kubernetes writes one")
    return moment.timestamp()


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise BadInputError(f"{name}: an object is expected")
    return found


def _listed(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = document.get(name)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise BadInputError(f"status.{name}: a list of objects is expected")
    return found
