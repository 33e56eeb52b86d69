"""Certificates: the external metrics API under the one that the chart generates, the router's data port under any;
renewed ones are followed."""

import asyncio
import base64
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.chart.tls_ends import tls_ends, tls_ends_of_the_last  # noqa: F401  # fixtures of every test here
from tonnage_planner.fleet import Fleet
from tonnage_planner.hooks.desired import DesiredReplicas
from tonnage_planner.hooks.external_metrics import ROOT, build_external_metrics
from tonnage_planner.settings import PlannerSettings
from tonnage_router.gateway import Gateway
from tonnage_router.metrics import RouterMetrics
from tonnage_router.service import RouterService
from tonnage_router.settings import RouterSettings
from tonnage_runtime import tls as tls_files
from tonnage_runtime.clock import ManualClock
from tonnage_runtime.errors import SettingsError
from tonnage_runtime.http_app import bind, serve
from tonnage_runtime.ports import free_port
from tonnage_runtime.tls import Tls

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
    monkeypatch.setattr(tls_files, "CERTIFICATE_LOOK_S", 0.01)
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


def secured(folder: Path, files: dict[str, bytes], **more: Any) -> RouterSettings:
    """A router's settings with these files as its certificate."""
    write(folder, files)
    return RouterSettings(tls_cert_file=folder / "tls.crt", tls_key_file=folder / "tls.key", **more)


async def asked(port: int, ca: bytes) -> tuple[bytes, bytes]:
    """The certificate that a client which trusts `ca` is shown, and the whole answer."""
    context = ssl.create_default_context(cadata=ca.decode())
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=HOST)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.write(f"GET /v1/models HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read(-1)
    writer.close()
    return shown, answer


async def test_the_routers_data_port_speaks_tls_and_takes_up_a_renewed_certificate(
    tmp_path: Path, render: Callable[..., list[Object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_files, "CERTIFICATE_LOOK_S", 0.01)
    first, _ = generated(render, "one")
    later, _ = generated(render, "two")
    service = RouterService(Gateway(secured(tmp_path, first), RouterMetrics(CollectorRegistry())))
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    await service.start(sock)
    try:
        shown, answer = await asked(port, first["ca.crt"])
        assert shown == ssl.PEM_cert_to_DER_cert(first["tls.crt"].decode())
        assert answer.startswith(b"HTTP/1.1 200 OK") and answer.endswith(b"}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n")
        assert not (await reader.read(-1)).startswith(b"HTTP")
        writer.close()
        write(tmp_path, later)
        wanted = ssl.PEM_cert_to_DER_cert(later["tls.crt"].decode())
        async with asyncio.timeout(60):
            while (await asked(port, first["ca.crt"] + later["ca.crt"]))[0] != wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        await service.stop()


async def test_what_is_no_certificate_ends_the_start_with_one_line(
    tmp_path: Path, render: Callable[..., list[Object]]
) -> None:
    first, _ = generated(render, "one")
    other, _ = generated(render, "two")
    for files in ({"tls.crt": b"no"}, {"tls.key": other["tls.key"]}):
        gateway = Gateway(secured(tmp_path, first | files), RouterMetrics(CollectorRegistry()))
        with pytest.raises(SettingsError, match=r"TLS files .*tls\.crt.*give a PEM certificate") as caught:
            RouterService(gateway)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="tls_cert_file and tls_key_file together"):
        RouterSettings(tls_cert_file=tmp_path / "tls.crt")


def test_a_secret_named_for_the_router_is_mounted_and_named_in_its_settings(
    render: Callable[..., list[Object]],
) -> None:
    (router,) = [
        o
        for o in render({"router": {"tls": {"secretName": "front"}}})
        if o["kind"] == "Deployment" and o["metadata"]["name"].endswith("router")
    ]
    pod = router["spec"]["template"]["spec"]
    told = {e["name"]: e.get("value") for e in pod["containers"][0]["env"]}
    mounts = {m["name"]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}
    (volume,) = [v for v in pod["volumes"] if v["name"] == "tls"]
    assert volume["secret"]["secretName"] == "front"
    assert told["TONNAGE_ROUTER_TLS_CERT_FILE"] == f"{mounts['tls']}/tls.crt"
    assert told["TONNAGE_ROUTER_TLS_KEY_FILE"] == f"{mounts['tls']}/tls.key"
