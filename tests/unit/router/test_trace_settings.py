"""Where traces go: the router's own settings, and OpenTelemetry's variables for those that are not given."""

import pytest

from tonnage_core.tracing.sampling import Rule
from tonnage_router.main import settings_from
from tonnage_runtime.errors import SettingsError

HERE = "TONNAGE_ROUTER_OTLP_ENDPOINT"
STANDARD = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
    "OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%3Db, x-scope = t1",
    "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
    "OTEL_SERVICE_NAME": "front",
    "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=r-0",
    "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
    "OTEL_TRACES_SAMPLER_ARG": "0.25",
}


def test_nothing_is_traced_unless_somebody_says_where_to() -> None:
    assert settings_from({}).otlp_endpoint == ""
    nowhere = {name: value for name, value in STANDARD.items() if "ENDPOINT" not in name}
    assert settings_from({**nowhere, "OTEL_TRACES_SAMPLER": "xray"}) == settings_from({})


def test_the_standard_variables_are_followed() -> None:
    found = settings_from(STANDARD)
    assert (found.otlp_endpoint, found.trace_service_name) == ("http://collector:4318", "front")
    assert (found.trace_sampler, found.trace_ratio) == (Rule.PARENTBASED_TRACEIDRATIO, 0.25)
    assert (found.trace_resource, found.otlp_compression) == ("k8s.pod.name=r-0", "gzip")
    assert found.spans_to == ("http", "collector", 4318, "/v1/traces")
    assert "a%3Db" not in repr(found), "headers hold keys"


def test_the_routers_own_settings_come_first() -> None:
    own = {HERE: "https://other:443/otel", "TONNAGE_ROUTER_TRACE_RATIO": "0.5"}
    found = settings_from(STANDARD | own)
    assert (found.otlp_endpoint, found.trace_ratio, found.trace_service_name) == (
        "https://other:443/otel",
        0.5,
        "front",
    )


@pytest.mark.parametrize(
    ("url", "to"),
    [
        ("https://other/otel/spans", ("https", "other", 443, "/otel/spans")),
        ("http://other:4318/", ("http", "other", 4318, "/")),
        ("http://other:4318", ("http", "other", 4318, "/")),
    ],
)
def test_the_variables_for_traces_come_before_those_for_all_signals_and_their_url_is_whole(
    url: str, to: tuple[str, str, int, str]
) -> None:
    of_traces = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": url,
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "api-key=t",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "none",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    }
    found = settings_from(STANDARD | of_traces | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert (found.spans_to, found.otlp_headers, found.otlp_compression) == (to, "api-key=t", "none")
    alone = settings_from({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": url})
    assert alone.spans_to == to == settings_from({"TONNAGE_ROUTER_OTLP_TRACES_ENDPOINT": url}).spans_to
    own = settings_from(STANDARD | of_traces | {HERE: "http://mine:4318"})
    assert own.spans_to == ("http", "mine", 4318, "/v1/traces"), "the router's own settings come first"
    assert settings_from(of_traces | {"OTEL_SDK_DISABLED": "true"}).spans_to is None


@pytest.mark.parametrize("off", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}, {HERE: ""}])
def test_the_standard_ways_to_turn_traces_off_hold(off: dict[str, str]) -> None:
    assert settings_from(STANDARD | off).spans_to is None
    assert settings_from({HERE: "http://collector:4318"} | off).spans_to is None, "whoever named the collector"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({HERE: "collector:4318"}, "otlp_endpoint: give a collector's URL"),
        ({HERE: "grpc://collector:4317"}, "give a collector's URL"),
        ({HERE: "http://user:secret@collector"}, "give keys in otlp_headers"),
        ({HERE: "http://collector/?key=secret"}, "no user, query or fragment"),
        ({HERE: "http://169.254.169.254"}, "nothing is fetched from metadata"),
        ({HERE: "http://collector:70000"}, "otlp_endpoint"),
        ({HERE: "http://collector:0"}, "a port from 1 to 65535"),
        ({HERE: "http://collector/a b"}, "printable ASCII"),
        ({HERE: "http://" + "x" * 70}, "otlp_endpoint"),
        ({HERE: "http://[::1"}, "otlp_endpoint"),
        ({"TONNAGE_ROUTER_OTLP_HEADERS": "secret"}, "otlp_headers is name=value"),
        ({"TONNAGE_ROUTER_OTLP_HEADERS": "a=secret%0d%0ax: y"}, "the value of a is not printable"),
        ({"TONNAGE_ROUTER_OTLP_HEADERS": "a b=secret"}, "cannot be set as a header"),
        ({"TONNAGE_ROUTER_OTLP_HEADERS": "Host=secret"}, "cannot be set as a header"),
        ({"TONNAGE_ROUTER_TRACE_RATIO": "1.5"}, "trace_ratio"),
        ({"TONNAGE_ROUTER_TRACE_SAMPLER": "xray"}, "trace_sampler: .*parentbased_traceidratio"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "nowhere"}, "OTEL_.*: otlp_endpoint"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://u:secret@collector/"}, "OTEL_.*: otlp_traces_endpoint"),
        ({**STANDARD, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "spans are sent as http/protobuf"),
        ({**STANDARD, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "spans are sent as http/protobuf"),
        ({**STANDARD, "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd"}, "OTEL_.*: otlp_compression: .*'gzip'"),
    ],
)
def test_what_cannot_be_followed_is_one_clear_error_without_secrets(environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        settings_from(environ)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)
