"""Where load goes: to the address that was judged, whatever a name says the next time."""

import asyncio
import socket
from typing import Any

import pytest

from tonnage_loadgen.errors import TargetError
from tonnage_loadgen.plain_http import ask
from tonnage_loadgen.target import address_of, parse_target


def names(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """The resolver gives these answers, one a call; the names that it was asked."""
    asked: list[str] = []

    async def resolve(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        found = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve, raising=False)
    return asked


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "fe80::1%eth0", "::ffff:169.254.169.254", "0.0.0.0", "224.0.0.1"]
)
async def test_a_name_that_leads_to_a_refused_address_is_asked_nothing(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names(monkeypatch, [address])
    with pytest.raises(TargetError, match="nothing is fetched from"):
        await ask(parse_target("http://engine.models:1"), "/v1/models")


async def test_one_refused_address_of_several_refuses_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, ["127.0.0.1", "169.254.169.254"])
    with pytest.raises(TargetError, match=r"169\.254\.169\.254"):
        await address_of(parse_target("http://engine.models:1"))


async def test_a_name_that_changes_after_the_look_is_not_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    asked = names(monkeypatch, ["127.0.0.1"], ["169.254.169.254"])
    async with server:
        assert (await ask(parse_target(f"http://engine.models:{port}"), "/v1/models")).document() == {}
    assert asked == ["engine.models"]


async def test_of_several_addresses_the_first_that_listens_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    names(monkeypatch, ["127.0.0.2", "127.0.0.1", "127.0.0.3"])
    async with server:
        assert await address_of(parse_target(f"http://engine.models:{port}")) == "127.0.0.1"
