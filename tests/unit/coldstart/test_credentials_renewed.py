"""Credentials that expire while a transfer runs are resolved anew, once a request."""

from pathlib import Path
from typing import Any

import pytest

from tonnage_coldstart.errors import SourceError
from tonnage_coldstart.sources.http_client import HttpClient
from tonnage_coldstart.sources.http_files import Address, HttpFiles

SHARD = "model-00001-of-00002.safetensors"


class Signer:
    """Addresses whose signature is accepted until it expires; `renewed` counts how often a new one was asked for."""

    def __init__(self, url: str, *, good: bool) -> None:
        self.url, self.good, self.renewed, self.signature = url, good, 0, "old"

    def address(self, method: str, name: str, renew: bool) -> Address:
        if renew:
            self.renewed += 1
            self.signature = "new" if self.good else "old"
        return Address(f"{self.url}/{name}?signature={self.signature}", {})


@pytest.mark.parametrize("good", [True, False])
def test_a_refused_signature_is_made_anew_once(origin: Any, described: Path, good: bool) -> None:
    signer = Signer(origin.url, good=good)
    client = HttpClient(timeout_s=5.0)
    files = HttpFiles("s3://bucket/model", signer.address, client, renews=True)
    expired = b"<?xml version='1.0'?><Error><Code>ExpiredToken</Code></Error>"

    def fault(method: str, name: str, reply: Any) -> Any:
        if signer.signature == "old":
            return type(reply)(403, {"Content-Type": "application/xml"}, expired)
        return reply

    origin.fault = fault
    if good:
        found = files.describe(SHARD)
        assert found is not None
        buffer = bytearray(100)
        files.read_range(found, 10, memoryview(buffer))
        assert bytes(buffer) == (described / SHARD).read_bytes()[10:110]
        assert signer.renewed == 1
    else:
        with pytest.raises(SourceError, match="answered 403 ExpiredToken: credentials are missing, wrong or expired"):
            files.read_small(SHARD, 1 << 20)
        assert signer.renewed == 1
    client.close()
