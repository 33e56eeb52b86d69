"""The planner answers as its OpenAPI document says, whatever it is asked."""

from collections.abc import Sequence
from typing import Any

import schemathesis
from hypothesis import settings
from prometheus_client import CollectorRegistry
from schemathesis import Case
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tonnage_core.autoscaling.observation import Outcome
from tonnage_planner.adapters.endpoints_static import StaticEndpoints
from tonnage_planner.app import Ports, build_app
from tonnage_planner.ports import ScrapeError
from tonnage_planner.settings import EndpointSettings, PlannerSettings
from tonnage_runtime.clock import SystemClock


class Dead:
    """No endpoint answers."""

    async def text(self, url: str) -> str:
        raise ScrapeError(Outcome.UNREACHABLE, "connection refused")

    async def addresses(self, url: str) -> Sequence[str]:
        return (url,)


APP = build_app(
    PlannerSettings(),
    Ports(StaticEndpoints([EndpointSettings(url="http://a", model="m")]), Dead(), SystemClock(), CollectorRegistry()),
)
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)


@SCHEMA.parametrize()
@settings(max_examples=25, deadline=None)
def test_every_answer_is_as_documented(case: "Case[Any]") -> None:
    # A question may be of the right form and still name a model nobody knows: that is 400 and documented.
    case.call_and_validate(excluded_checks=[positive_data_acceptance])
