"""Spans as the router writes them, read by OTLP's generated classes."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tonnage_core.tracing.context import MAX_STATE_BYTES, TraceContext, header, read_context
from tonnage_core.tracing.otlp import (
    MAX_TEXT_BYTES,
    Kind,
    Span,
    encoded_attributes,
    encoded_request,
    encoded_span,
    rejected_spans,
)

TEXT = st.text(max_size=300)
VALUES = st.one_of(
    st.none(), TEXT, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.just(2**31)
)
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
TIMES = st.integers(0, 2**63)
SPANS = st.builds(
    Span,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    TEXT,
    st.sampled_from(Kind),
    TIMES,
    TIMES,
    st.dictionaries(NAMES, VALUES, max_size=6),
    st.just(b"") | st.just(encoded_attributes({"own label": "x"})),
    st.none() | TEXT,
    st.binary(max_size=0) | st.just(b"vendor=value"),
)


def cut(text: str) -> str:
    return text.encode("utf-8", "replace")[:MAX_TEXT_BYTES].decode("utf-8", "ignore")


def read_value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


@settings(max_examples=60, deadline=None)
@given(st.lists(SPANS, max_size=4), st.dictionaries(NAMES, TEXT, max_size=3))
def test_a_request_is_read_back_as_it_was_meant(spans: list[Span], resource: dict[str, str]) -> None:
    body = encoded_request(resource, "scope", "1.0", [encoded_span(span) for span in spans])
    (by_resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert {kv.key: kv.value.string_value for kv in by_resource.resource.attributes} == {
        name: cut(text) for name, text in resource.items()
    }
    (scoped,) = by_resource.scope_spans
    assert (scoped.scope.name, scoped.scope.version) == ("scope", "1.0")
    assert len(scoped.spans) == len(spans)
    for found, span in zip(scoped.spans, spans, strict=True):
        assert found.trace_id == span.trace_id.to_bytes(16, "big") and found.span_id == span.span_id.to_bytes(8, "big")
        assert found.parent_span_id == (span.parent_id.to_bytes(8, "big") if span.parent_id else b"")
        assert (found.name, found.kind, found.trace_state) == (cut(span.name), span.kind, span.state.decode())
        assert (found.start_time_unix_nano, found.end_time_unix_nano) == (span.start_ns, span.end_ns)
        wanted = {n: cut(v) if isinstance(v, str) else v for n, v in span.attributes.items() if v is not None}
        wanted |= {"own label": "x"} if span.labels else {}
        read = {kv.key: read_value(kv.value) for kv in found.attributes}
        assert read == wanted and {n: type(v) for n, v in read.items()} == {n: type(v) for n, v in wanted.items()}
        assert (found.status.code, found.status.message) == ((0, "") if span.error is None else (2, cut(span.error)))


@given(st.integers(0, 2**63 - 1), TEXT)
def test_what_a_collector_did_not_take_is_read_from_its_answer(rejected: int, why: str) -> None:
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = rejected
    answer.partial_success.error_message = why
    assert rejected_spans(answer.SerializeToString()) == rejected


@given(st.binary(max_size=200))
def test_any_answer_is_read_without_an_error(answer: bytes) -> None:
    assert rejected_spans(answer) >= 0


@given(st.lists(st.binary(max_size=70), max_size=2), st.lists(st.binary(max_size=300), max_size=3))
def test_any_header_is_a_context_or_none(parents: list[bytes], states: list[bytes]) -> None:
    found = read_context(parents, states)
    assert found is None or (found.trace_id and found.parent_id and len(found.state) <= MAX_STATE_BYTES)


@given(st.lists(st.binary(max_size=300), max_size=3))
def test_no_callers_state_spoils_the_batch_its_span_is_in(states: list[bytes]) -> None:
    context = read_context([header(1, 2, 1)], states)
    assert context is not None
    span = encoded_span(Span(1, 3, 2, "a", Kind.SERVER, 0, 1, {"\udcff": "\udcff"}, state=context.state))
    ExportTraceServiceRequest.FromString(encoded_request({"\udcff": "a"}, "scope", "1.0", [span]))


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.integers(0, 255))
def test_a_context_is_read_as_it_was_written(trace_id: int, span_id: int, flags: int) -> None:
    assert read_context([header(trace_id, span_id, flags)], []) == TraceContext(trace_id, span_id, flags)


def test_an_empty_answer_rejects_nothing() -> None:
    assert rejected_spans(b"") == 0
