"""Listening: a taken port, an impossible address and a port out of range are told apart, in one line."""

import asyncio

import pytest

from tonnage_runtime.errors import ListenError, PortInUseError
from tonnage_runtime.http_app import MAX_HEAD_BYTES, bind, build_base_app, serve
from tonnage_runtime.metrics import new_registry


def test_a_taken_port_is_said_to_be_in_use() -> None:
    with bind("127.0.0.1", 0) as first, pytest.raises(PortInUseError, match="is in use"):
        bind("127.0.0.1", first.getsockname()[1])


def test_an_address_that_is_not_this_machines_is_not_called_in_use() -> None:
    with pytest.raises(ListenError, match=r"cannot listen on 192\.0\.2\.1 port 0: .*: choose another address or port"):
        bind("192.0.2.1", 0)


@pytest.mark.parametrize("port", [-1, 70000])
def test_a_port_out_of_range_is_named(port: int) -> None:
    with pytest.raises(ListenError, match=f"port {port}: ports are 0 to 65535"):
        bind("127.0.0.1", port)


@pytest.mark.parametrize(
    "start", [b"GET /healthz HTTP/1.1\r\nhost: a\r\nx: ", b"GET /"], ids=["header", "request line"]
)
async def test_a_head_without_end_is_refused_before_it_fills_the_memory(start: bytes) -> None:
    sock, stop = bind("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.create_task(serve(build_base_app("t", new_registry()), sock, stop=stop))
    reader, writer = await asyncio.open_connection(*sock.getsockname()[:2])
    writer.write(start + b"a" * (MAX_HEAD_BYTES + 1))
    answer = await asyncio.wait_for(reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"connection: close" in answer.lower()
    writer.close()
    stop.set()
    await serving
