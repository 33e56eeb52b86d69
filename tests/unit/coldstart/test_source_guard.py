"""Where sources may lead: not to metadata services, not beyond the list, whatever a name or a redirect says."""

import http.client
from pathlib import Path
from typing import Any

import pytest
import trustme

from tonnage_coldstart.errors import SourceError, UnknownSourceError
from tonnage_coldstart.sources.http_client import HttpClient
from tonnage_coldstart.sources.opening import SourceOptions, open_source
from tonnage_coldstart.sources.s3 import S3Options
from tonnage_coldstart.sources.shown import shown_uri


class Wire:
    """A socket that remembers what was sent."""

    def __init__(self, peer: str) -> None:
        self.peer, self.sent, self.closed = peer, b"", False

    def getpeername(self) -> tuple[str, int]:
        return self.peer, 80

    def sendall(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True


def test_a_name_that_leads_to_the_metadata_service_is_refused_before_a_byte_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire = Wire("169.254.169.254")

    def connect(self: Any) -> None:
        self.sock = wire

    monkeypatch.setattr(http.client.HTTPConnection, "connect", connect)
    client = HttpClient(timeout_s=1.0)
    with pytest.raises(SourceError, match=r"refused: its address is 169\.254\.169\.254"):
        client.request("GET", "http://innocent.example/latest", {"Authorization": "Bearer s"})
    assert wire.sent == b"" and wire.closed


@pytest.mark.parametrize(
    ("uri", "taken"),
    [
        ("http://a.models.internal/m", True),
        ("https://A.Models.Internal./m", True),
        ("s3://weights/llama", True),
        ("http://elsewhere.example/m", False),
        ("http://models.internal.evil.example/m", False),
        ("http://a.models.internal@evil.example/m", False),
        ("s3://other/llama", False),
    ],
)
def test_only_listed_hosts_and_buckets_are_opened(uri: str, taken: bool) -> None:
    options = SourceOptions(hosts=("*.models.internal", "weights"))
    if taken:
        open_source(uri, options).close()
        return
    with pytest.raises(UnknownSourceError, match="not among the hosts"):
        open_source(uri, options)


def test_a_redirect_is_held_to_the_list_too(origin: Any) -> None:
    def redirect(method: str, name: str, reply: Any) -> Any:
        return type(reply)(302, {"Location": "http://evil.example/w"}, b"")

    origin.fault = redirect
    client = HttpClient(timeout_s=5.0, hosts=("127.0.0.1",))
    with pytest.raises(SourceError, match=r"evil\.example.*refused"):
        client.request("HEAD", f"{origin.url}/config.json", {})
    client.close()


@pytest.mark.parametrize("location", ["http://a..b/w", "http://127.0.0.1:port/w", "http://[::1/w", "/w\xe9"])
def test_a_redirect_to_no_address_is_one_clear_error(origin: Any, location: str) -> None:
    def redirect(method: str, name: str, reply: Any) -> Any:
        return type(reply)(302, {"Location": location}, b"")

    origin.fault = redirect
    client = HttpClient(timeout_s=5.0)
    with pytest.raises(SourceError, match=r"address|redirects to"):
        client.request("HEAD", f"{origin.url}/config.json", {})
    client.close()


@pytest.mark.parametrize(
    "uri",
    [
        "http://[::1/m",
        "http://h:port/m",
        "http://h:99999/m",
        "ftp://h/m",
        "gopher://h",
        "//h",
        "http://a b/m",
        "s3://a b/m",
        'http://a"b/m',
        "http://a..b/m",
        f"http://{'a' * 64}/m",
    ],
)
def test_a_uri_that_is_none_is_one_clear_error(uri: str) -> None:
    with pytest.raises((UnknownSourceError, SourceError)):
        open_source(uri, SourceOptions(local=False)).close()


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("/models/a?b", "/models/a?b"),
        ("https://u:p@h:1/m?sig=s#f", "https://h:1/m"),
        ("https://u:p@h", "https://h"),
        ("https://h?sig=s@t", "https://h"),
        ("s3://bucket/a/b", "s3://bucket/a/b"),
    ],
)
def test_a_shown_uri_tells_no_credentials(uri: str, shown: str) -> None:
    assert shown_uri(uri) == shown


def test_authorities_in_a_form_that_s3_lists_cannot_take_are_one_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(trustme.CA().cert_pem.bytes().replace(b"CERTIFICATE", b"TRUSTED CERTIFICATE"))
    store = S3Options(endpoint="https://127.0.0.1:1", anonymous=True)
    with pytest.raises(SourceError, match=r"ca\.pem: No certificates found"):
        open_source("s3://bucket/model", SourceOptions(s3=store, ca_file=str(file)))
