"""The whole operator against a mock cluster: every kind made, changed, scaled and deleted; refusals; cut watches."""

from collections.abc import Callable
from typing import Any

from tonnage_operator import kinds
from tonnage_operator.kinds import MANAGER

Make = Callable[..., dict[str, Any]]


async def test_a_model_server_becomes_its_objects_by_server_side_apply(fleet: Any, a_model_server: Make) -> None:
    await fleet.server.put(kinds.MODEL_SERVERS, a_model_server())
    await fleet.start()
    await fleet.until(lambda: (fleet.server.body(kinds.MODEL_SERVERS, "llama-8b") or {}).get("status"))
    for plural in ("services", "poddisruptionbudgets", "deployments"):
        (call,) = fleet.server.applied(plural)
        assert (call.content_type, call.manager, call.force) == ("application/apply-patch+yaml", MANAGER, "true")
        assert call.body["metadata"]["ownerReferences"][0]["uid"] == "uid-llama-8b"
        assert call.body["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] is False
    deployment = fleet.server.body(kinds.DEPLOYMENTS, "llama-8b")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    status = fleet.server.body(kinds.MODEL_SERVERS, "llama-8b")["status"]
    assert (status["replicas"], status["desiredReplicas"]) == (0, 1)
    assert status["selector"] == "tonnage.dev/model-server=llama-8b,tonnage.dev/part=serving"
