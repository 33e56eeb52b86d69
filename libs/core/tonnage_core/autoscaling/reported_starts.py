"""Starts that others timed, from the pod's creation on: an endpoint is listed later, once its pod has an address."""

from collections.abc import Mapping
from dataclasses import replace

from tonnage_core.autoscaling.outlook import STARTS_KEPT, OutlookState


def told(state: OutlookState, starts: Mapping[str, float]) -> OutlookState:
    """The state with `starts`, in seconds by a name of their own, among those that say how far ahead to look."""
    new = {name: took for name, took in starts.items() if name not in state.starts}
    if not new:
        return state
    return replace(state, starts=dict(list({**state.starts, **new}.items())[-STARTS_KEPT:]))
