"""Settings of tracing: where spans go, what they say of this router, which requests are traced."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import Field, field_validator

from tonnage_core.addresses import refused_literal
from tonnage_core.tracing.sampling import Rule
from tonnage_runtime.errors import SettingsError
from tonnage_runtime.settings import Settings, validated

STANDARD = {
    "OTEL_EXPORTER_OTLP_HEADERS": "otlp_headers",
    "OTEL_EXPORTER_OTLP_CERTIFICATE": "otlp_ca_file",
    "OTEL_EXPORTER_OTLP_COMPRESSION": "otlp_compression",
    "OTEL_SERVICE_NAME": "trace_service_name",
    "OTEL_RESOURCE_ATTRIBUTES": "trace_resource",
    "OTEL_TRACES_SAMPLER": "trace_sampler",
    "OTEL_TRACES_SAMPLER_ARG": "trace_ratio",
}
"""OpenTelemetry's own variables, for settings that are given nowhere else."""
WHERE = frozenset({"otlp_endpoint", "otlp_traces_endpoint"})
PROTOCOLS = ("http/protobuf", "")
TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""What a header's name is made of (RFC 9110 section 5.6.2)."""
OWN_HEADERS = frozenset(
    {"host", "connection", "content-encoding", "content-length", "content-type", "transfer-encoding"}
)


class TraceSettings(Settings):
    """The router's settings of tracing."""

    otlp_endpoint: str = ""
    """Base URL of an OpenTelemetry collector, `http://collector:4318`: spans of requests go to its `/v1/traces` (OTLP
    over HTTP, protobuf); empty traces nothing."""
    otlp_traces_endpoint: str = ""
    """Whole URL that spans are posted to, in place of `otlp_endpoint`, as OTEL_EXPORTER_OTLP_TRACES_ENDPOINT has it."""
    otlp_headers: str = Field(default="", repr=False)
    """Header lines sent to it, `name=value,name=value`, as OTEL_EXPORTER_OTLP_HEADERS has them: often a key."""
    otlp_ca_file: Path | None = None
    """PEM certificates of authorities to believe besides the system's, for an `https://` collector."""
    otlp_compression: Literal["none", "gzip"] = "none"
    """`gzip`: an eighth of the bytes, for some 5 us of CPU a request."""
    trace_sampler: Rule = Rule.PARENTBASED_ALWAYS_ON
    """Which requests are traced: the standard's samplers; `parentbased_*` do as the caller did."""
    trace_ratio: float = Field(default=1.0, ge=0, le=1)
    """Share of traces that the two samplers `*traceidratio` keep."""
    trace_service_name: str = Field(default="tonnage-router", min_length=1, max_length=200)
    """Name of this router in traces."""
    trace_resource: str = ""
    """Further facts of this router in traces, `name=value,name=value`, as OTEL_RESOURCE_ATTRIBUTES has them."""

    @field_validator("otlp_endpoint")
    @classmethod
    def _leads_to_a_collector(cls, url: str) -> str:
        if url:
            collector(url)
        return url

    @field_validator("otlp_traces_endpoint")
    @classmethod
    def _is_a_collectors(cls, url: str) -> str:
        if url:
            collector(url, whole=True)
        return url

    @field_validator("otlp_headers")
    @classmethod
    def _are_headers(cls, text: str) -> str:
        header_lines(text)
        return text

    @field_validator("trace_resource")
    @classmethod
    def _are_attributes(cls, text: str) -> str:
        pairs(text, "trace_resource")
        return text

    @property
    def spans_to(self) -> tuple[str, str, int, str] | None:
        """Scheme, host, port and path that spans are posted to; None where nothing is traced."""
        if self.otlp_traces_endpoint:
            return collector(self.otlp_traces_endpoint, whole=True)
        return collector(self.otlp_endpoint) if self.otlp_endpoint else None


def collector(url: str, *, whole: bool = False) -> tuple[str, str, int, str]:
    """Scheme, host, port and path that spans are posted to: `/v1/traces` of a base URL, a `whole` one as it is. Raises
    ValueError saying what is wrong with the URL; what it holds is not shown where it may be a password."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("give a collector's URL, http://host:4318 or https://host:4318")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError("a collector's URL has no user, query or fragment: give keys in otlp_headers")
    if (why := refused_literal(parts.hostname)) is not None:
        raise ValueError(why)
    port = parts.port if parts.port is not None else (443 if parts.scheme == "https" else 80)
    path = parts.path if whole else parts.path.rstrip("/")
    if not whole and not path.endswith("/v1/traces"):
        path += "/v1/traces"
    path = path or "/"
    if not path.isascii() or not path.isprintable() or " " in path or not port:
        raise ValueError("a collector's URL has a port from 1 to 65535 and a path of printable ASCII")
    parts.hostname.encode("idna")  # a name that can be none is told here, not at each attempt to send
    return parts.scheme, parts.hostname, port, path


def pairs(text: str, name: str) -> list[tuple[str, str]]:
    """`name=value,name=value`, values percent-decoded. Raises ValueError naming the setting, not its content."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{name} is name=value,name=value")
        found.append((key.strip(), unquote(value.strip())))
    return found


def header_lines(text: str) -> bytes:
    """`otlp_headers` as header lines. Raises ValueError for what would break a request, without showing it."""
    made = []
    for name, value in pairs(text, "otlp_headers"):
        if not set(name) <= TOKEN or name.lower() in OWN_HEADERS:
            raise ValueError(f"otlp_headers: {name!r} cannot be set as a header")
        if not value.isascii() or not value.isprintable():
            raise ValueError(f"otlp_headers: the value of {name} is not printable ASCII")
        made.append(f"{name}: {value}\r\n")
    return "".join(made).encode()


T = TypeVar("T", bound=TraceSettings)


def _standard(environ: Mapping[str, str], name: str) -> str:
    """A standard variable: that for traces before that for all signals; an empty one is as good as none."""
    return environ.get(name.replace("_OTLP_", "_OTLP_TRACES_")) or environ.get(name, "")


def _standard_endpoint(environ: Mapping[str, str]) -> dict[str, Any]:
    if whole := environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        return {"otlp_traces_endpoint": whole}
    base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    return {"otlp_endpoint": base} if base else {}


def with_standard(settings: T, environ: Mapping[str, str]) -> T:
    """The settings, with OpenTelemetry's standard variables for those that are not given by their own names.

    Raises `SettingsError` for one that cannot be followed. They are looked at only where spans are sent; the two that
    turn tracing off do so whoever named the collector.
    """
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER", "") == "none":
        return settings.model_copy(update=dict.fromkeys(WHERE, ""))
    own = bool(settings.model_fields_set & WHERE)
    given = {} if own else _standard_endpoint(environ)
    if not given and settings.spans_to is None:
        return settings
    if (protocol := _standard(environ, "OTEL_EXPORTER_OTLP_PROTOCOL")) not in PROTOCOLS and not own:
        raise SettingsError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}: spans are sent as http/protobuf; set otlp_endpoint to a "
            "collector's HTTP port, or OTEL_SDK_DISABLED=true"
        )
    given |= {
        field: value
        for name, field in STANDARD.items()
        if (value := _standard(environ, name)) and field not in settings.model_fields_set
    }
    rest = {name: getattr(settings, name) for name in settings.model_fields_set}
    return validated(type(settings), rest | given, "OTEL_*") if given else settings
