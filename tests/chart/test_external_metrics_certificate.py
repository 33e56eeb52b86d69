"""The certificate that the chart generates serves the external metrics API, and a renewed one is followed."""

import asyncio
import base64
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tonnage_planner.fleet import Fleet
from tonnage_planner.hooks.desired import DesiredReplicas
from tonnage_planner.hooks.external_metrics import ROOT, build_external_metrics
from tonnage_planner.settings import PlannerSettings
from tonnage_runtime import http_app
from tonnage_runtime.clock import ManualClock
from tonnage_runtime.http_app import Tls, bind, serve
from tonnage_runtime.ports import free_port

Object = dict[str, Any]
HOST = "demo-tonnage-planner.fleet.svc"


def generated(render: Callable[..., list[Object]], mark: str) -> tuple[dict[str, bytes], bytes]:
    """The Secret's files and the APIService's CA; `mark` keeps two renders apart."""
    external = {"enabled": True, "clientCa": mark, "certificate": {"from": "generated"}}
    objects = render({"planner": {"externalMetrics": external}})
    (secret,) = [o for o in objects if o["kind"] == "Secret"]
    (service,) = [o for o in objects if o["kind"] == "APIService"]
    data = {name: base64.b64decode(value) for name, value in secret["data"].items()}
    return data, base64.b64decode(service["spec"]["caBundle"])


def write(folder: Path, files: dict[str, bytes]) -> None:
    """As the kubelet does: the new file takes the place of the old one."""
    for name, data in files.items():
        fresh = folder / f".{name}"
        fresh.write_bytes(data)
        fresh.rename(folder / name)


async def served(port: int, client: Path, ca: bytes) -> tuple[bytes, bytes]:
    """The certificate a client that trusts `ca` is shown, and the answer's first line."""
    context = ssl.create_default_context(cadata=ca.decode())
    context.load_cert_chain(client / "tls.crt", client / "tls.key")
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=HOST)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.write(f"GET {ROOT} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
    line = await reader.readline()
    writer.close()
    return shown, line


async def test_the_generated_certificate_is_trusted_by_its_bundle_and_a_new_one_is_served_without_a_restart(
    tmp_path: Path, render: Callable[..., list[Object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_app, "CERTIFICATE_LOOK_S", 0.01)
    first, bundle = generated(render, "one")
    later, _ = generated(render, "two")
    own, client = tmp_path / "own", tmp_path / "client"
    for folder, files in ((own, first), (client, first)):
        folder.mkdir()
        write(folder, files)
    tls = Tls(str(own / "tls.crt"), str(own / "tls.key"), str(client / "ca.crt"))
    stop, port = asyncio.Event(), free_port()
    clock = ManualClock(0.0)
    app = build_external_metrics(DesiredReplicas(Fleet(PlannerSettings()), clock.monotonic, 30.0), clock)
    serving = asyncio.create_task(serve(app, bind("127.0.0.1", port), drain_timeout_s=1, stop=stop, tls=tls))
    try:
        shown, line = await served(port, client, bundle)
        assert line.startswith(b"HTTP/1.1 200")
        assert shown == ssl.PEM_cert_to_DER_cert(first["tls.crt"].decode())
        write(own, {"tls.crt": b"not a certificate"})
        await asyncio.sleep(0.05)
        assert (await served(port, client, bundle))[0] == shown
        write(own, later)
        wanted = ssl.PEM_cert_to_DER_cert(later["tls.crt"].decode())
        async with asyncio.timeout(60):
            while (await served(port, client, bundle + later["ca.crt"]))[0] != wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        stop.set()
        await serving


async def test_a_client_without_a_certificate_of_the_front_proxys_ca_is_refused(
    tmp_path: Path, render: Callable[..., list[Object]]
) -> None:
    first, bundle = generated(render, "one")
    stranger, _ = generated(render, "two")
    for name, files in (("own", first), ("stranger", stranger)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, files)
    tls = Tls(str(tmp_path / "own" / "tls.crt"), str(tmp_path / "own" / "tls.key"), str(tmp_path / "own" / "ca.crt"))
    stop, port = asyncio.Event(), free_port()
    clock = ManualClock(0.0)
    app = build_external_metrics(DesiredReplicas(Fleet(PlannerSettings()), clock.monotonic, 30.0), clock)
    serving = asyncio.create_task(serve(app, bind("127.0.0.1", port), drain_timeout_s=1, stop=stop, tls=tls))
    try:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            _, line = await served(port, tmp_path / "stranger", bundle)
            if not line:
                raise ConnectionError("closed without an answer")
    finally:
        stop.set()
        await serving
