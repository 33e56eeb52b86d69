"""The watch of custom resources: a connection that died in silence, and one that had its time."""

import asyncio
from typing import Any

import pytest

from tests.unit.operator.conftest import Fleet
from tonnage_operator.adapters.kopf_watch import KopfWatch
from tonnage_operator.kinds import MODEL_SERVERS
from tonnage_runtime.kube import Object


async def test_a_dead_watch_is_replaced_and_the_next_one_tells_what_came(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server takes the first watch of each kind and never says a word, nor ends it when its time is over."""
    watches: list[dict[str, str]] = []
    answer, over = fleet.server._handle, asyncio.Event()

    async def silent(request: Any) -> Any:
        if request.params.get("watch") and request.resource and request.resource.plural == MODEL_SERVERS.plural:
            watches.append(dict(request.params))
            if len(watches) == 1:
                await over.wait()
        return await answer(request)

    monkeypatch.setattr(fleet.server, "_handle", silent)
    seen: list[tuple[str, str]] = []

    def event(plural: str, kind: str, item: Object) -> None:
        seen.append((plural, item["metadata"]["name"]))

    watch = KopfWatch(fleet.login, event, watch_s=1, spare_s=1)
    watch.start()
    try:
        await fleet.until(lambda: len(watches) > 1)
        while (MODEL_SERVERS.plural, "llama") not in seen:
            # Again: this server forgets what comes before it has answered a watch.
            await fleet.server.put(MODEL_SERVERS, {"metadata": {"name": "llama", "namespace": "serving"}, "spec": {}})
            await asyncio.sleep(0.1)
    finally:
        over.set()
        await asyncio.to_thread(watch.stop)
    assert {one["timeoutSeconds"] for one in watches} == {"1"}
