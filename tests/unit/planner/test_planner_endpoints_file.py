"""One endpoints file serves the router and the planner."""

from tonnage_planner.settings import EndpointSettings
from tonnage_router.settings import EndpointSpec

ROUTERS_OWN = {"uid"}
"""What discovery alone sets."""


def test_every_field_of_the_routers_endpoints_is_read_by_the_planner() -> None:
    assert set(EndpointSpec.model_fields) - ROUTERS_OWN <= set(EndpointSettings.model_fields)
