"""The endpoint set wanted, made real: joiners are added, leavers dropped, changed ones replaced."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tonnage_router.fleet import endpoint_id
from tonnage_router.ranks import by_rank
from tonnage_router.settings import EndpointSpec

if TYPE_CHECKING:
    from tonnage_router.gateway import Gateway


def reconcile(gateway: "Gateway", wanted: Sequence[EndpointSpec], owned: set[str]) -> set[str]:
    """Make the endpoints this source owns equal `wanted`; returns the ids it now owns.

    An endpoint whose spec changed is another engine at the same address until proven otherwise: its prefix knowledge
    and its health start anew. Requests running on a leaver end by themselves.
    """
    fleet = gateway.fleet
    specs = {endpoint_id(spec): spec for spec in by_rank(wanted)}
    for name in owned:
        endpoint = fleet.by_id.get(name)
        if endpoint is not None and specs.get(name) != endpoint.spec:
            fleet.remove(endpoint)
    for name, spec in specs.items():
        if name not in fleet.by_id:
            gateway.add_endpoint(spec)
    return set(specs)
