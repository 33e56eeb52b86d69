"""The admin port, and what a caller is told about its own request."""

from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from prometheus_client import CollectorRegistry

from tests.integration.router.tenant_files import key, write
from tonnage_router.app import build_app

LONG = "word " * 500


def admin(router: Any) -> httpx.AsyncClient:
    registry = CollectorRegistry()
    registry.register(router.gateway.metrics)
    transport = httpx.ASGITransport(build_app(router.gateway, registry))
    return httpx.AsyncClient(transport=transport, base_url="http://admin")


def chat(text: str) -> bytes:
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": text}]})


async def test_a_second_turn_goes_where_the_first_went_and_says_so(engines: Any, route: Any) -> None:
    made = await engines(3)
    router = await route(made)
    first = await router.post(chat(LONG), extra=b"x-tonnage-explain: 1\r\n")
    second = await router.post(chat(LONG + "more"), extra=b"x-tonnage-explain: 1\r\n")
    assert first.header(b"x-tonnage-endpoint") == second.header(b"x-tonnage-endpoint")
    assert (first.header(b"x-tonnage-reason"), second.header(b"x-tonnage-reason")) == (b"load", b"prefix")
    assert int(second.header(b"x-tonnage-hit-tokens")) >= 400
    async with admin(router) as client:
        kept = (await client.get(f"/admin/decisions/{int(second.header(b'x-tonnage-decision'))}")).json()["decision"]
    assert (kept["reason"], kept["hit_tokens"]) == ("prefix", int(second.header(b"x-tonnage-hit-tokens")))
    plain = await router.post(chat(LONG))
    assert plain.header(b"x-tonnage-endpoint") is None


async def test_decisions_are_shown_newest_first_with_every_score(engines: Any, route: Any) -> None:
    router = await route(await engines(2))
    for number in range(3):
        await router.post(chat(f"{number}"), extra=b"x-request-id: r%d\r\n" % number)
    async with admin(router) as client:
        rows = (await client.get("/admin/decisions?limit=2")).json()["decisions"]
    assert [row["request_id"] for row in rows] == ["r2", "r1"]
    assert {c["endpoint"] for c in rows[0]["candidates"]} == {
        e.url.removeprefix("http://") for e in router_engines(router)
    }
    assert set(rows[0]["candidates"][0]["scores"]) >= {"uncached_prefix", "token_load", "kv_utilisation"}


async def test_a_decision_is_found_by_its_number_and_its_parts_add_up(engines: Any, route: Any) -> None:
    router = await route(await engines(3))
    for number in range(3):
        await router.post(chat(f"{LONG} {number}"), extra=b"x-request-id: r%d\r\n" % number)
    async with admin(router) as client:
        rows = (await client.get("/admin/decisions?candidates=false")).json()["decisions"]
        found = (await client.get(f"/admin/decisions/{rows[0]['number']}")).json()["decision"]
        gone = await client.get(f"/admin/decisions/{rows[0]['number'] + 1}")
    assert [row["number"] for row in rows] == [3, 2, 1]
    assert all("candidates" not in row and row["considered"] == 3 for row in rows)
    assert found["request_id"] == "r2"
    assert found["weights"]["uncached_prefix"] > 0
    for row in found["candidates"]:
        assert abs(sum(row["parts"].values()) - row["total"]) < 1e-4
    assert gone.status_code == 404
    assert "kept: 1 to 3" in gone.json()["error"]["message"]


def router_engines(router: Any) -> Any:
    return [endpoint.spec for endpoint in router.gateway.fleet]


async def test_a_drained_endpoint_gets_nothing_until_the_drain_is_undone(engines: Any, route: Any) -> None:
    made = await engines(2)
    router = await route(made)
    name = made[0].url.removeprefix("http://")
    async with admin(router) as client:
        assert (await client.post(f"/admin/endpoints/{name}/drain")).json()["draining"] is True
        for number in range(10):
            await router.post(chat(f"{number}"))
        assert len(made[0].calls) == 0
        assert (await client.post(f"/admin/endpoints/{name}/drain?undo=true")).json()["draining"] is False
        assert (await client.post("/admin/endpoints/nobody/drain")).status_code == 404


async def test_health_is_told_on_the_data_port_too_and_needs_no_key(engines: Any, route: Any, tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text(f"tenants: [{{name: a, key_sha256: {'a' * 64}}}]")
    router = await route(await engines(), tenants_file=file)
    client = await router.client()

    async def health(method: bytes = b"GET") -> tuple[int, bytes]:
        client.writer.write(method + b" /health HTTP/1.1\r\nHost: r\r\n\r\n")
        answer = await client.read()
        return answer.status, b"".join(answer.pieces)

    assert await health() == (200, b"")
    router.gateway.fleet.remove(next(iter(router.gateway.fleet)))
    status, body = await health()
    assert (status, orjson.loads(body)["error"]["message"]) == (503, "no endpoint is healthy")
    assert not router.gateway.metrics.refused, "a probe is no refused request"
    assert (await health(b"POST"))[0] == 405


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 1000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\nf4240\r\n"]
)
async def test_health_without_a_key_takes_no_room_from_requests_that_have_one(
    framing: bytes, engines: Any, route: Any, tmp_path: Path
) -> None:
    router = await route(await engines(), tenants_file=write(tmp_path, a={}), buffered_bytes=1_000_000)
    client = await router.client()
    client.writer.write(b"GET /health HTTP/1.1\r\nHost: r\r\n" + framing + b"x" * 999_999)
    assert (await client.read()).status == 413
    assert router.gateway.buffered == 0
    assert (await router.post(b'{"model":"m"}', extra=key("a"))).status == 200


async def test_readiness_follows_the_fleet_and_metrics_count_requests(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    await router.post(chat("x"))
    async with admin(router) as client:
        assert (await client.get("/readyz")).status_code == 200
        page = (await client.get("/metrics")).text
        assert f'tonnage_router_requests_total{{endpoint="127.0.0.1:{engine.port}",pool="m",status="200"}} 1.0' in page
        assert 'tonnage_router_queue_requests{pool="m"} 0.0' in page
        assert 'tonnage_router_slo_requests_total{pool="m",verdict="met"} 1.0' in page
        assert 'tonnage_router_slo_requests_total{pool="m",verdict="failed"} 0.0' in page
        assert 'tonnage_router_first_byte_seconds_count{pool="m"} 1.0' in page
        router.gateway.fleet.remove(next(iter(router.gateway.fleet)))
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()["reason"]) == (503, "no endpoint is healthy")
        assert (await client.get("/admin/endpoints")).json()["endpoints"] == []
        assert (await client.get("/admin/queue")).json()["pools"][0]["requests"] == 0


PREFILL_ONLY = "every healthy endpoint that does not drain has the role prefill"


@pytest.mark.parametrize(
    ("roles", "drained", "waited_for", "reason"),
    [
        (["both", "both"], 1, [], None),
        (["both", "both"], 2, [], "every healthy endpoint drains"),
        (["both", "both"], 2, ["m"], None),
        (["prefill", "prefill"], 0, [], PREFILL_ONLY),
        (["decode", "prefill"], 1, [], PREFILL_ONLY),
        (["prefill", "decode"], 1, [], None),
        ([], 0, [], "no endpoint is healthy"),
    ],
)
async def test_a_router_whose_endpoints_take_nothing_new_is_not_ready(
    roles: list[str], drained: int, waited_for: list[str], reason: str | None, engines: Any, route: Any
) -> None:
    made = await engines(len(roles))
    listed = [{"url": engine.url, "model": "m", "role": role} for engine, role in zip(made, roles, strict=True)]
    router = await route(made, endpoints=listed, scale_from_zero=waited_for)
    for endpoint in list(router.gateway.fleet)[:drained]:
        router.gateway.fleet.drain(endpoint)
    client = await router.client()
    client.writer.write(b"GET /health HTTP/1.1\r\nHost: r\r\n\r\n")
    told = await client.read()
    async with admin(router) as admins:
        ready = await admins.get("/readyz")
    assert told.status == ready.status_code == (503 if reason else 200)
    if reason is None:
        return
    assert orjson.loads(told.body)["error"]["message"] == ready.json()["reason"] == reason
    assert (await router.post(chat("x"))).status in (404, 503), "it answers nobody"


async def test_an_engine_that_lists_no_model_makes_no_router_ready(engines: Any, route: Any) -> None:
    (engine,) = await engines(listed=[{"parent": "no id"}])
    router = await route([engine], endpoints=[{"url": engine.url}])
    assert router.gateway.not_ready() == "no healthy endpoint lists a model, or the policy's filters keep none"
    assert (await router.post(chat("x"))).status == 404
    engine.listed = []
    for endpoint in router.gateway.fleet:
        await router.service.prober.read_models(endpoint)
    assert router.gateway.not_ready() is None
    assert (await router.post(chat("x"))).status == 200


async def test_the_engines_gauges_are_polled_expire_and_show_a_restart(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    page = b"vllm:kv_cache_usage_perc 0.5\nvllm:num_requests_waiting 3\nprocess_start_time_seconds %d\n"
    engine.metrics = page % 1
    router = await route([engine], metrics_interval_s=0.1, metrics_stale_s=0.5)
    endpoint = next(iter(router.gateway.fleet))
    await router.until(lambda: endpoint.candidate.kv_utilisation == 0.5)
    await router.post(chat(LONG))
    assert router.gateway.scheduler.index.blocks(endpoint.candidate.slot) > 0
    engine.metrics = page % 2
    await router.until(lambda: router.gateway.scheduler.index.blocks(endpoint.candidate.slot) == 0)
    engine.metrics = b"vllm:kv_cache_usage_perc nonsense\n"
    await router.until(lambda: endpoint.candidate.kv_utilisation is None)
    assert endpoint.candidate.waiting is None
