"""Traces: the spans that a collector gets of what requests went through, and the context that engines get."""

import asyncio
import contextlib
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

CHAT = b'{"model":"m","messages":[{"role":"user","content":"a secret prompt"}]}'
STREAM = b'{"model":"m","stream":true,"messages":[]}'
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = f"traceparent: 00-{TRACE}-{PARENT}-01\r\n".encode()
LINE = re.compile(rb"\r\ntraceparent: 00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})\r\n", re.IGNORECASE)
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":2}}\n\n'
CLIENT, INTERNAL = 3, 1


def named(call: Any) -> tuple[str, str, str]:
    """Trace, span and flags that an engine was told; exactly one line of them."""
    ((trace, span, flags),) = LINE.findall(call.head)
    return trace.decode(), span.decode(), flags.decode()


def traced(collector: Any, **settings: Any) -> dict[str, Any]:
    return {"otlp_endpoint": collector.engine.url, **settings}


async def test_a_request_is_a_span_and_its_attempt_a_child_that_the_engine_is_told(
    engines: Any, route: Any, collector: Any
) -> None:
    (engine,) = await engines()
    settings = traced(collector, trace_service_name="front", trace_resource="k8s.pod.name=r%2D0")
    router = await route([engine], **settings)
    await router.post(CHAT, extra=b"x-request-id: r-1\r\nAuthorization: Bearer sk-secret\r\n")
    await router.until(lambda: len(collector.spans) == 2)
    (root,), (attempt,) = collector.roots, collector.of("attempt")
    assert (root.name, root.parent, root.error) == ("POST /v1/chat/completions", "", None)
    assert (attempt.kind, attempt.trace, attempt.parent, attempt.error) == (CLIENT, root.trace, root.id, None)
    assert root.begun <= attempt.begun <= attempt.ended <= root.ended
    assert named(engine.calls[0]) == (root.trace, attempt.id, "01")
    wanted = {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 2,
        "tonnage.policy": "prefix",
        "tonnage.endpoint": f"127.0.0.1:{engine.port}",
        "tonnage.reason": "only_candidate",
        "tonnage.outcome": "ok",
        "tonnage.stream": False,
        "tonnage.request_id": "r-1",
    }
    assert {name: root.facts.get(name) for name in wanted} == wanted
    assert root.facts["tonnage.first_byte_s"] > 0 and "tonnage.tenant" not in root.facts
    assert attempt.facts["server.port"] == engine.port and attempt.facts["http.response.status_code"] == 200
    assert root.resource["service.name"] == "front" and root.resource["k8s.pod.name"] == "r-0"
    sent = b"".join(call.head + call.body for call in collector.engine.calls)
    assert b"secret" not in sent
    await router.until(lambda: router.gateway.metrics.trace_spans == {"exported": 2})


async def test_a_stream_goes_on_with_its_callers_trace(engines: Any, route: Any, collector: Any) -> None:
    async def stream(call: Any) -> None:
        call.stream_head()
        await call.chunk(b'data: {"choices":[{"delta":{}}]}\n\n')
        await call.chunk(USAGE)
        await call.chunk(b"data: [DONE]\n\n")
        call.end()

    (engine,) = await engines(script=stream)
    router = await route([engine], **traced(collector))
    assert b"[DONE]" in (await router.post(STREAM, extra=CALLER + b"TraceState: a=1\r\ntracestate: b=2\r\n")).body
    await router.until(lambda: len(collector.spans) == 2)
    (root,), (attempt,) = collector.roots, collector.of("attempt")
    assert (root.trace, root.parent, root.state) == (TRACE, PARENT, "a=1,b=2")
    assert root.facts["gen_ai.latency.time_to_first_token"] == root.facts["tonnage.first_byte_s"] > 0
    assert root.facts["gen_ai.usage.output_tokens"] == 2
    assert named(engine.calls[0]) == (TRACE, attempt.id, "01")
    assert b"\r\nTraceState: a=1\r\ntracestate: b=2\r\n" in engine.calls[0].head, "the list passes as it came"


async def test_an_attempt_elsewhere_is_a_span_of_its_own(engines: Any, route: Any, collector: Any) -> None:
    made = await engines(2)
    router = await route(made, **traced(collector), policy="round_robin")
    made[0].stop()
    for endpoint in router.gateway.fleet:
        endpoint.pool.close()
        endpoint.pool._closed = False
    answers = [await router.post(CHAT) for _ in range(2)]
    assert {answer.status for answer in answers} == {200}
    await router.until(lambda: len(collector.spans) == 5)
    (refused,) = [span for span in collector.of("attempt") if span.error]
    assert (refused.error, refused.facts["error.type"]) == ("connect", "connect")
    assert refused.facts["server.port"] == made[0].port and "http.response.status_code" not in refused.facts
    (second,) = [s for s in collector.of("attempt") if s.trace == refused.trace and s is not refused and not s.error]
    assert second.parent == refused.parent and second.begun >= refused.ended
    assert second.facts["http.request.resend_count"] == 1
    told = [named(call)[1] for call in made[1].calls]
    assert sorted(told) == sorted(span.id for span in collector.of("attempt") if not span.error)
    (root,) = [span for span in collector.roots if span.trace == refused.trace]
    assert (root.error, root.facts["tonnage.retries"]) == (None, 1)


async def test_a_status_that_is_tried_elsewhere_is_the_attempts_and_one_that_is_passed_on_the_requests(
    engines: Any, route: Any, collector: Any
) -> None:
    async def busy(call: Any) -> None:
        call.answer(b"{}", "503 Service Unavailable")

    made = await engines(2, script=busy)
    router = await route(made, **traced(collector))
    assert (await router.post(CHAT)).status == 503
    await router.until(lambda: len(collector.spans) == 3)
    assert [span.facts["http.response.status_code"] for span in collector.of("attempt")] == [503, 503]
    assert [span.error for span in collector.of("attempt")] == ["503", "503"]
    (root,) = collector.roots
    assert (root.error, root.facts["error.type"]) == ("upstream_status", "503")


async def test_a_stale_connection_is_an_attempt_that_failed(engines: Any, route: Any, collector: Any) -> None:
    async def once(call: Any) -> None:
        if len(call.engine.calls) == 2:
            call.writer.transport.abort()
        else:
            call.answer()

    (engine,) = await engines(script=once)
    router = await route([engine], **traced(collector))
    client = await router.client()
    assert [(await client.post(CHAT)).status for _ in range(2)] == [200, 200]
    await router.until(lambda: len(collector.spans) == 5)
    assert [span.error for span in collector.of("attempt")] == [None, "stale", None]
    assert [named(call)[1] for call in engine.calls] == [span.id for span in collector.of("attempt")]


async def test_waiting_for_capacity_is_a_span(engines: Any, route: Any, collector: Any) -> None:
    go = asyncio.Event()

    async def hold(call: Any) -> None:
        await go.wait()
        call.answer()

    (engine,) = await engines(script=hold)
    router = await route([engine], **traced(collector), endpoint_requests=1)
    tasks = [asyncio.create_task(router.post(CHAT)) for _ in range(2)]
    await router.until(lambda: router.gateway.admission.waiting == 1)
    go.set()
    await asyncio.gather(*tasks)
    await router.until(lambda: len(collector.spans) == 5)
    (waited,) = collector.of("queue")
    (attempt,) = [span for span in collector.of("attempt") if span.trace == waited.trace]
    assert waited.kind == INTERNAL and waited.parent == attempt.parent and waited.error is None
    assert waited.begun < waited.ended == attempt.begun


async def test_a_request_that_is_refused_in_the_queue_says_so(engines: Any, route: Any, collector: Any) -> None:
    async def hang(call: Any) -> None:
        await call.reader.read(1)

    (engine,) = await engines(script=hang)
    router = await route([engine], **traced(collector), endpoint_requests=1, queue_requests=0)
    first = asyncio.create_task(router.post(CHAT))
    await router.until(lambda: len(engine.calls) == 1)
    assert (await router.post(CHAT)).status == 429
    await router.until(lambda: len(collector.spans) == 2)
    (waited,), (root,) = collector.of("queue"), collector.roots
    assert (waited.error, root.error, root.facts["http.response.status_code"]) == ("overloaded", None, 429)
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first


async def test_a_client_that_leaves_and_an_engine_that_dies_end_their_spans(
    engines: Any, route: Any, collector: Any
) -> None:
    async def begin(call: Any) -> None:
        call.stream_head()
        await call.chunk(b'data: {"choices":[{"delta":{}}]}\n\n')
        if len(call.engine.calls) == 2:
            call.writer.transport.abort()
        elif not await call.reader.read(1):
            call.engine.left += 1

    (engine,) = await engines(script=begin)
    router = await route([engine], **traced(collector))
    client = await router.client()
    client.send(STREAM)
    await client.reader.readuntil(b"delta")
    client.close()
    await router.until(lambda: len(collector.spans) == 2)
    (gone,), (attempt,) = collector.roots, collector.of("attempt")
    assert (gone.facts["tonnage.outcome"], gone.error, attempt.error) == ("client_gone", None, None)
    assert "gen_ai.usage.output_tokens" not in gone.facts, "what is not known is not 0"
    await router.post(STREAM)
    await router.until(lambda: len(collector.spans) == 4)
    (died,), (_, broken) = collector.roots[1:], collector.of("attempt")
    assert (died.error, died.facts["error.type"], died.facts["http.response.status_code"]) == ("cut", "cut", 200)
    assert (broken.error, broken.facts["http.response.status_code"]) == ("cut", 200)


async def test_loading_an_adapter_is_a_span(engines: Any, route: Any, collector: Any) -> None:
    (engine,) = await engines()
    adapters = [{"name": "lora-1", "parent": "m", "path": "/adapters/1"}]
    router = await route([engine], **traced(collector), adapters=adapters)
    await router.post(b'{"model":"lora-1","messages":[]}')
    await router.until(lambda: len(collector.spans) == 3)
    (loaded,), (attempt,) = collector.of("load adapter"), collector.of("attempt")
    assert loaded.facts["tonnage.adapter"] == "lora-1" and loaded.ended == attempt.begun and loaded.error is None


@pytest.mark.parametrize("works", [True, False])
async def test_prefill_and_decode_are_two_calls_of_one_trace(
    works: bool, engines: Any, route: Any, collector: Any
) -> None:
    async def prefill(call: Any) -> None:
        call.answer(b'{"choices":[],"kv_transfer_params":{"a":1}}' if works else b'{"choices":[]}')

    (first,), (second,) = await engines(1, script=prefill), await engines(1)
    listed = [{"url": first.url, "model": "m", "role": "prefill"}, {"url": second.url, "model": "m", "role": "decode"}]
    moved = [{"model": "m", "kv_bytes_per_token": 131072}]
    router = await route([], endpoints=listed, disaggregation=moved, **traced(collector))
    for endpoint in router.gateway.fleet:
        endpoint.candidate.decoding = 50 if endpoint.spec.role == "decode" else 0
    long = b'{"model":"m","messages":[{"role":"user","content":"' + b"word " * 8000 + b'"}]}'
    assert (await router.post(long, extra=CALLER)).status == 200
    await router.until(lambda: len(collector.spans) == 3)
    (computed,), (decoded,) = collector.of("prefill"), collector.of("attempt")
    assert computed.kind == decoded.kind == CLIENT and computed.parent == decoded.parent == collector.roots[0].id
    assert (computed.facts["tonnage.role"], decoded.facts["tonnage.role"]) == ("prefill", "decode")
    assert computed.error == (None if works else "no_params") and decoded.error is None
    assert named(first.calls[0]) == (TRACE, computed.id, "01")
    assert named(second.calls[0]) == (TRACE, decoded.id, "01")


@pytest.mark.parametrize(
    "lines",
    [
        CALLER + CALLER,
        b"traceparent: 00-" + b"a" * 9000 + b"\r\n",
        b"traceparent: ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n",
        b"traceparent: 00-00000000000000000000000000000000-b7ad6b7169203331-01\r\n",
        b"tracestate: a=1\r\n",
    ],
)
async def test_a_context_that_is_none_begins_a_trace(lines: bytes, engines: Any, route: Any, collector: Any) -> None:
    (engine,) = await engines()
    router = await route([engine], **traced(collector))
    assert (await router.post(CHAT, extra=lines + b"tracestate: b=2\r\n")).status == 200
    await router.until(lambda: len(collector.spans) == 2)
    (root,), (attempt,) = collector.roots, collector.of("attempt")
    assert root.trace != TRACE and (root.parent, root.state) == ("", "")
    assert named(engine.calls[0]) == (root.trace, attempt.id, "01")
    assert b"tracestate" not in engine.calls[0].head.lower()


async def test_off_nothing_is_added_and_nothing_runs(engines: Any, route: Any) -> None:
    (engine,) = await engines()
    router = await route([engine])
    before = len(asyncio.all_tasks())
    lines = CALLER + CALLER + b"tracestate: a=1\r\n"
    assert (await router.post(CHAT, extra=lines)).status == 200
    assert lines in engine.calls[0].head
    await router.settled()
    assert router.gateway.tracer is None and len(asyncio.all_tasks()) <= before + 1


async def test_what_a_caller_does_not_record_passes_as_it_came(engines: Any, route: Any, collector: Any) -> None:
    (engine,) = await engines()
    router = await route([engine], **traced(collector))
    lines = CALLER.replace(b"-01\r\n", b"-00\r\n") + b"tracestate: a=1\r\n"
    await router.post(CHAT, extra=lines)
    await router.service.stop()
    assert lines in engine.calls[0].head
    assert collector.engine.calls == [] and router.gateway.metrics.trace_spans == {}


@pytest.mark.parametrize("lines", [b"", CALLER])
async def test_engines_are_told_not_to_record_what_the_router_does_not(
    lines: bytes, engines: Any, route: Any, collector: Any
) -> None:
    (engine,) = await engines()
    router = await route([engine], **traced(collector), trace_sampler="traceidratio", trace_ratio=0.0)
    await router.post(CHAT, extra=lines)
    await router.settled()
    trace, span, flags = named(engine.calls[0])
    assert flags == "00" and span != PARENT and (trace == TRACE) is bool(lines)
    await router.service.stop()
    assert collector.engine.calls == [] and router.gateway.metrics.trace_spans == {}


async def test_tenants_go_by_their_names(engines: Any, route: Any, collector: Any, tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    key = hashlib.sha256(b"sk-secret").hexdigest()
    file.write_text(f"tenants: [{{name: acme, key_sha256: '{key}', requests_per_s: 1}}]")
    (engine,) = await engines()
    router = await route([engine], **traced(collector), tenants_file=file)
    answers = [await router.post(CHAT, extra=b"Authorization: Bearer sk-secret\r\n") for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    await router.until(lambda: len(collector.spans) == 3)
    served, refused = sorted(collector.roots, key=lambda span: span.begun)
    assert served.facts["tonnage.tenant"] == refused.facts["tonnage.tenant"] == "acme"
    assert (refused.facts["tonnage.outcome"], refused.facts["http.response.status_code"]) == (
        "rate_limit_exceeded",
        429,
    )
    sent = b"".join(call.body for call in collector.engine.calls)
    assert b"secret" not in sent and key.encode() not in sent


POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\n"
REFUSED = {
    "no such path": (b"GET /v1/chat?key=secret HTTP/1.1\r\nHost: r\r\n\r\n", "GET", 404, "no such path: /v1/chat"),
    "a wrong method": (b"PUT /v1/models HTTP/1.1\r\nHost: r\r\n\r\n", "PUT /v1/models", 405, "use GET for /v1/models"),
    "a method of its own": (b"MKCOL /a HTTP/1.1\r\nHost: r\r\n\r\n", "HTTP", 404, "no such path: /a"),
    "too large": (POST + b"Content-Length: 5000\r\n\r\n", None, 413, "the body is larger than 4000 bytes"),
    "no more room": (POST + b"Content-Length: 2000\r\n\r\n", None, 503, "too many request bytes are buffered"),
    "no JSON": (POST + b"Content-Length: 6\r\n\r\nsecret", None, 400, "the body is not valid JSON"),
    "no such model": (POST + b'Content-Length: 13\r\n\r\n{"model":"n"}', None, 404, "The model `n` does not exist."),
    "smuggling": (POST + b"Transfer-Encoding: x\r\n\r\n", None, 400, "the only supported Transfer-Encoding"),
    "no HTTP": (b"\x16\x03\x01 secret\r\n\r\n", "HTTP", 400, "malformed HTTP request"),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_a_request_that_is_refused_before_routing_is_a_span(
    kind: str, engines: Any, route: Any, collector: Any
) -> None:
    sent, name, status, why = REFUSED[kind]
    (engine,) = await engines()
    router = await route([engine], **traced(collector), body_bytes=4000, buffered_bytes=1000)
    client = await router.client()
    client.writer.write(sent.replace(b"Host: r\r\n", b"Host: r\r\n" + CALLER + b"x-request-id: r-1\r\n"))
    assert (await client.read()).status == status
    await router.until(lambda: len(collector.spans) == 1)
    (root,) = collector.roots
    assert root.name == (name or "POST /v1/chat/completions")
    assert root.facts["http.response.status_code"] == status and root.facts["tonnage.refusal"].startswith(why)
    assert root.facts["tonnage.outcome"] == "refused"
    if kind != "no HTTP":
        assert (root.trace, root.parent, root.facts["tonnage.request_id"]) == (TRACE, PARENT, "r-1")
    failed = status >= 500
    assert root.facts.get("error.type") == ("503" if failed else None), "a server's span of a 4xx is no error"
    assert (root.error is not None) is failed and root.begun == root.ended
    assert b"secret" not in collector.engine.calls[0].body
    await router.until(lambda: router.gateway.metrics.trace_spans == {"exported": 1})


async def test_a_request_without_a_valid_key_is_a_span_and_what_strangers_write_is_cut(
    engines: Any, route: Any, collector: Any, tmp_path: Path
) -> None:
    file = tmp_path / "tenants.yaml"
    key = hashlib.sha256(b"sk-secret").hexdigest()
    file.write_text(f"tenants: [{{name: acme, key_sha256: '{key}'}}]")
    (engine,) = await engines()
    router = await route([engine], **traced(collector), tenants_file=file)
    assert (await router.post(CHAT, extra=b"Authorization: Bearer sk-wrong-secret\r\n")).status == 401
    assert (await router.post(CHAT, path=b"/" + b"x" * 9000)).status == 404
    known = b"Authorization: Bearer sk-secret\r\n"
    assert (await router.post(CHAT, path=b"/v1/x", extra=known)).status == 404
    assert (await router.post(b'{"model":"' + b"n" * 9000 + b'"}', extra=known)).status == 404
    await router.until(lambda: len(collector.spans) == 4)
    assert [span.facts.get("tonnage.tenant") for span in collector.roots] == [None, None, None, "acme"]
    assert max(len(value) for span in collector.roots for value in span.facts.values() if type(value) is str) == 256
    assert b"secret" not in b"".join(call.body for call in collector.engine.calls)


async def test_a_refused_request_is_sampled_as_others_are(engines: Any, route: Any, collector: Any) -> None:
    (engine,) = await engines()
    router = await route([engine], **traced(collector))
    assert (await router.post(CHAT, path=b"/v1/x", extra=CALLER.replace(b"-01\r\n", b"-00\r\n"))).status == 404
    assert (await router.post(CHAT, path=b"/v1/y")).status == 404
    await router.until(lambda: len(collector.spans) == 1)
    assert collector.roots[0].facts["url.path"] == "/v1/y"
