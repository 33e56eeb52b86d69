"""HTTPS between the parts: every port that leaves a pod can speak it, every caller of a part checks who answers, and
the chart turns both on by one Secret."""

import asyncio
import base64
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

import tonnage_bench.main
import tonnage_coldstart.main
import tonnage_gpu_agent.main
import tonnage_operator.main
import tonnage_planner.main
from tests.chart.tls_ends import tls_ends, tls_ends_of_the_last  # noqa: F401  # fixtures of every test here
from tonnage_bench.adapters.desk_http import HttpDesk
from tonnage_bench.adapters.planner_http import post_points
from tonnage_bench.errors import DeskError
from tonnage_bench.ports import Ref
from tonnage_bench.settings import BenchSettings
from tonnage_coldstart.errors import TransientSourceError
from tonnage_coldstart.settings import ColdstartSettings
from tonnage_coldstart.sources.http_client import HttpClient
from tonnage_operator.adapters.http import Caller, CallError
from tonnage_operator.settings import OperatorSettings
from tonnage_planner.adapters.scrape_http import HttpScraper
from tonnage_planner.hooks.keda import KedaScaler, serve_keda
from tonnage_planner.ports import ScrapeError
from tonnage_planner.settings import PlannerSettings
from tonnage_router import service as router_service
from tonnage_router.gateway import Gateway
from tonnage_router.metrics import RouterMetrics
from tonnage_router.settings import RouterSettings
from tonnage_runtime import tls as tls_files
from tonnage_runtime.access import SharedToken
from tonnage_runtime.alive import main as alive
from tonnage_runtime.errors import SettingsError
from tonnage_runtime.http_app import bind, build_base_app, serve
from tonnage_runtime.tls import Tls, TlsSettings, client_context, server_context

Object = dict[str, Any]
Render = Callable[..., list[Object]]
NAME = "demo-tonnage-planner.fleet.svc"


@pytest.fixture
def files(tmp_path: Path, render: Render) -> Path:
    """A folder with `tls.crt`, `tls.key` and `ca.crt` for `NAME`."""
    write_certificate(tmp_path, render, "any")
    return tmp_path


def write_certificate(folder: Path, render: Render, mark: str) -> None:
    """A certificate and the authority that made it, others for each `mark`."""
    external = {"enabled": True, "clientCa": mark, "certificate": {"from": "generated"}}
    objects = render({"planner": {"externalMetrics": external}})
    (secret,) = [one for one in objects if one["kind"] == "Secret"]
    for name, value in secret["data"].items():
        (folder / name).write_bytes(base64.b64decode(value))


@asynccontextmanager
async def part(files: Path) -> AsyncIterator[int]:
    """The port of a part that speaks HTTPS on 127.0.0.1."""
    stop, sock = asyncio.Event(), bind("127.0.0.1", 0)
    app = build_base_app("part", CollectorRegistry())
    tls = Tls(str(files / "tls.crt"), str(files / "tls.key"))
    serving = asyncio.create_task(serve(app, sock, drain_timeout_s=1, stop=stop, tls=tls))
    try:
        yield sock.getsockname()[1]
    finally:
        stop.set()
        await serving
        await asyncio.sleep(0.05)  # connections whose handshake was refused are not the server's: let their ends come


async def test_the_planner_asks_every_address_of_a_name_and_checks_the_name(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def two(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", 0)) for n in (1, 2)]

    limits: dict[str, Any] = {"timeout_s": 30.0, "body_limit_bytes": 10_000, "concurrency": 4}
    async with part(files) as port, HttpScraper(**limits, ca_file=files / "ca.crt") as scraper:
        with monkeypatch.context() as patched:
            patched.setattr(asyncio.get_running_loop(), "getaddrinfo", two, raising=False)
            found = await scraper.addresses(f"https://{NAME}:{port}")
            assert await scraper.addresses(f"https://else.where:{port + 1}")  # another part at the same addresses
        assert found == [f"https://127.0.0.{n}:{port}" for n in (1, 2)]
        assert "ok" in await scraper.text(found[0] + "/healthz")
        async with HttpScraper(**limits, ca_file=files / "ca.crt") as unnamed:
            with pytest.raises(ScrapeError, match="IP address mismatch"):
                await unnamed.text(f"https://127.0.0.1:{port}/healthz")
        async with HttpScraper(**limits) as stranger:
            with pytest.raises(ScrapeError, match="verify failed"):
                await stranger.text(f"https://127.0.0.1:{port}/healthz")


def shown(server: ssl.SSLContext, trusted: ssl.SSLContext) -> bytes | None:
    """The certificate that a caller believes who connects now."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = trusted.wrap_bio(back, there, server_hostname=NAME), server.wrap_bio(there, back, server_side=True)
    for side in sides * 4:
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return sides[0].getpeercert(binary_form=True)


async def test_half_of_a_renewed_pair_changes_nothing(
    files: Path, tmp_path: Path, render: Render, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_files, "CERTIFICATE_LOOK_S", 0.01)
    looks: list[Tls] = []

    def looked(tls: Tls) -> ssl.SSLContext:
        looks.append(tls)
        return server_context(tls)

    monkeypatch.setattr(tls_files, "server_context", looked)
    later = tmp_path / "later"
    later.mkdir()
    write_certificate(later, render, "another")
    first, either = client_context(files / "ca.crt"), client_context(files / "ca.crt")
    either.load_verify_locations(later / "ca.crt")
    renewed = ssl.PEM_cert_to_DER_cert((later / "tls.crt").read_text())

    own = Tls(str(files / "tls.crt"), str(files / "tls.key"))
    server = server_context(own)
    following = asyncio.create_task(tls_files.follow_certificate(server, own))
    async with asyncio.timeout(60):
        (files / "tls.crt").write_bytes((later / "tls.crt").read_bytes())
        while len(looks) < 3:  # noqa: ASYNC110 - it has looked at the half, whole
            await asyncio.sleep(0.01)
        assert shown(server, first) not in (None, renewed)
        (files / "tls.key").write_bytes((later / "tls.key").read_bytes())
        while shown(server, either) != renewed:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    following.cancel()


async def test_a_caller_takes_up_authorities_that_change_without_a_restart(
    files: Path, tmp_path: Path, render: Render
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_certificate(other, render, "another")
    trusted, ca = tmp_path / "trusted.crt", (files / "ca.crt").read_bytes()
    trusted.write_bytes((other / "ca.crt").read_bytes())
    callers = Caller(30.0, None, trusted, NAME), HttpClient(timeout_s=30.0, ca_file=str(trusted), tls_name=NAME)
    async with part(files) as port:
        url = f"https://127.0.0.1:{port}/healthz"

        def operator() -> object:
            return callers[0].json("GET", url)

        def node() -> bytes:
            return callers[1].read(callers[1].request("GET", url, {}), 1000)

        for text in (None, b"half written"):
            if text is not None:
                trusted.write_bytes(text)
            for call in (operator, node):
                with pytest.raises((CallError, TransientSourceError), match=r"(?i)certificate"):
                    await asyncio.to_thread(call)
        trusted.write_bytes(ca)
        assert (await asyncio.to_thread(operator)) == {"status": "ok"}
        assert (await asyncio.to_thread(node)) == b'{"status":"ok"}'
        for caller in callers:
            caller.close()


async def test_the_operator_and_nodes_know_a_service_at_a_pods_address_by_its_name(files: Path) -> None:
    ca = files / "ca.crt"
    async with part(files) as port:
        url = f"https://127.0.0.1:{port}/healthz"
        operator = Caller(30.0, None, ca, NAME)
        assert await asyncio.to_thread(operator.json, "GET", url) == {"status": "ok"}
        operator.close()
        for wrong in (Caller(30.0, None, ca), Caller(30.0, None, ca, "else.where"), Caller(30.0, None, None, NAME)):
            with pytest.raises(CallError, match=r"(?i)certificate"):
                await asyncio.to_thread(wrong.json, "GET", url)
            wrong.close()
        peer = HttpClient(timeout_s=30.0, ca_file=str(ca), tls_name=NAME)
        response = await asyncio.to_thread(peer.request, "GET", url, {})
        assert peer.read(response, 1000) == b'{"status":"ok"}'
        peer.close()
        for name, trusted in (("", str(ca)), ("else.where", str(ca)), (NAME, None)):
            refused = HttpClient(timeout_s=30.0, ca_file=trusted, tls_name=name)
            with pytest.raises(TransientSourceError, match=r"(?i)certificate"):
                await asyncio.to_thread(refused.request, "GET", url, {})
            refused.close()
        assert await asyncio.to_thread(alive, str(port)) == 0


async def test_the_bench_and_its_workers_show_no_token_to_a_certificate_that_is_not_their_partners(files: Path) -> None:
    trusted = client_context(files / "ca.crt")
    async with part(files) as port:
        url = f"https://127.0.0.1:{port}"  # the certificate is for another name
        assert await post_points(url, "a,b\n", "Bearer secret", trusted) == "unreachable"
        async with HttpDesk(url, SharedToken("secret"), trusted) as desk:
            with pytest.raises(DeskError, match="certificate"):
                await desk.beat(Ref("job", 1, 1), "worker", 0.0)


async def test_kedas_port_speaks_tls_and_takes_a_renewed_certificate(files: Path, render: Render) -> None:
    scaler = KedaScaler(None, lambda call, outcome: None)  # type: ignore[arg-type]  # no target is asked for
    tls = Tls(str(files / "tls.crt"), str(files / "tls.key"))

    async def asked(port: int, ca: bytes) -> grpc.StatusCode:
        trusted = grpc.ssl_channel_credentials(root_certificates=ca)
        options = [("grpc.ssl_target_name_override", NAME), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", trusted, options) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/no.Service/Call")(b"", timeout=30)
            code: grpc.StatusCode = caught.value.code()
            return code

    first = (files / "ca.crt").read_bytes()
    async with serve_keda(scaler, "127.0.0.1", 0, grace_s=0.1, tls=tls) as port:
        assert await asked(port, first) is grpc.StatusCode.UNIMPLEMENTED
        (files / "tls.crt").write_bytes(b"half written")
        assert await asked(port, first) is grpc.StatusCode.UNIMPLEMENTED
        write_certificate(files, render, "another")
        assert await asked(port, (files / "ca.crt").read_bytes()) is grpc.StatusCode.UNIMPLEMENTED
        assert await asked(port, first) is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(SettingsError, match="TLS files"):
        async with serve_keda(scaler, "127.0.0.1", 0, grace_s=0.1, tls=Tls(tls.key, tls.key)):
            pass
    with pytest.raises(ValueError, match="keda_tls needs tls_cert_file"):
        PlannerSettings(keda_tls=True)


def certificates_served(module: Any, monkeypatch: pytest.MonkeyPatch) -> list[Tls | None]:
    """What `module` serves its application with from now on, instead of serving it."""
    given: list[Tls | None] = []

    async def served(_: Any, sock: socket.socket, *, tls: Tls | None = None, **__: Any) -> None:
        sock.close()
        given.append(tls)

    monkeypatch.setattr(module, "serve", served)
    return given


MAINS: dict[str, tuple[Any, type[TlsSettings], Object]] = {
    "bench": (tonnage_bench.main, BenchSettings, {}),
    "coldstart": (tonnage_coldstart.main, ColdstartSettings, {}),
    "operator": (tonnage_operator.main, OperatorSettings, {}),
    "planner": (tonnage_planner.main, PlannerSettings, {}),
}


@pytest.mark.parametrize("name", MAINS)
async def test_a_part_serves_with_its_certificate(
    name: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, settings, more = MAINS[name]
    given = certificates_served(module, monkeypatch)
    monkeypatch.setattr(module, "build_app", lambda *_: None)
    pair = {"tls_cert_file": files / "tls.crt", "tls_key_file": files / "tls.key"}
    with pytest.raises(ValueError, match="tls_cert_file and tls_key_file together"):
        settings.model_validate({"tls_cert_file": files / "tls.crt"})
    await module.run(settings.model_validate({"port": 0, **pair, **more}))
    assert given == [Tls(str(pair["tls_cert_file"]), str(pair["tls_key_file"]))]


async def test_the_agent_serves_with_its_certificate(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = certificates_served(tonnage_gpu_agent.main, monkeypatch)
    environ = {
        "PORT": "0",
        "DRIVER": "fake",
        "TLS_CERT_FILE": str(files / "tls.crt"),
        "TLS_KEY_FILE": str(files / "tls.key"),
    }
    await tonnage_gpu_agent.main.run({f"TONNAGE_AGENT_{key}": value for key, value in environ.items()})
    assert given == [Tls(environ["TLS_CERT_FILE"], environ["TLS_KEY_FILE"])]


async def test_the_routers_admin_port_has_a_certificate_of_its_own(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = certificates_served(router_service, monkeypatch)
    cert, key = files / "tls.crt", files / "tls.key"
    with pytest.raises(ValueError, match="admin_tls_cert_file and admin_tls_key_file together"):
        RouterSettings(admin_tls_key_file=key)

    async def run(settings: RouterSettings) -> None:
        registry = CollectorRegistry()
        gateway = Gateway(settings, RouterMetrics(registry))
        data, admin = bind("127.0.0.1", 0), bind("127.0.0.1", 0)
        with data, admin:
            await router_service.run(gateway, registry, data, admin)

    await run(RouterSettings(admin_tls_cert_file=cert, admin_tls_key_file=key))
    assert given == [Tls(str(cert), str(key))]
    with pytest.raises(SettingsError, match="TLS files"):
        await run(RouterSettings(admin_tls_cert_file=key, admin_tls_key_file=key))


def test_one_secret_turns_https_on_for_every_part_of_a_release(
    render: Render, shape_values: Callable[[str], Object]
) -> None:
    values = shape_values("full")
    assert values["access"]["tlsSecretName"] == "parts-tls"
    objects = render(values)
    kinds = ("Deployment", "DaemonSet", "StatefulSet")
    pods = {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"]["template"]["spec"]
        for one in objects
        if one["kind"] in kinds
    }
    served = {"router", "planner", "agent", "coldstart", "operator", "bench"}
    assert served < set(pods)
    for name in served:
        (container, *_) = pods[name]["containers"]
        env = {each["name"]: each.get("value") for each in container["env"]}
        prefix = f"TONNAGE_{name.upper()}_{'ADMIN_' if name == 'router' else ''}TLS_"
        assert env[prefix + "CERT_FILE"] == "/etc/tonnage/parts-tls/tls.crt", name
        assert env[prefix + "KEY_FILE"] == "/etc/tonnage/parts-tls/tls.key", name
        assert any(mount["mountPath"] == "/etc/tonnage/parts-tls" for mount in container["volumeMounts"]), name
        probes = [container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")]
        assert all(probe["scheme"] == "HTTPS" for probe in probes), name
    own = [
        (each["name"], each["value"])
        for pod in pods.values()
        for container in pod["containers"]
        for each in container.get("env", [])
        if "http://" in str(each.get("value")) and ("demo-tonnage" in each["value"] or "POD_IP" in each["value"])
    ]
    assert own == []
    scaled = [one for one in objects if one["kind"] == "ScaledObject"]
    assert scaled
    assert all(one["spec"]["triggers"][0]["metadata"]["enableTLS"] == "true" for one in scaled)


def test_prometheus_knows_each_part_by_the_name_of_its_own_service(
    render: Render, shape_values: Callable[[str], Object]
) -> None:
    objects = render(shape_values("full"))
    named = {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: f"{one['metadata']['name']}.fleet.svc"
        for one in objects
        if one["kind"] == "Service" and one["metadata"]["labels"].get("tonnage.dev/metrics") == "true"
    }
    assert {"router", "planner", "agent", "coldstart", "operator", "bench"} == set(named)
    (monitor,) = [one for one in objects if one["kind"] == "ServiceMonitor"]
    endpoints = monitor["spec"]["endpoints"]
    assert {each["scheme"] for each in endpoints} == {"https"}
    kept = [each["relabelings"] for each in endpoints]
    label = "__meta_kubernetes_service_label_app_kubernetes_io_component"
    assert [[(k["action"], k["sourceLabels"], k["regex"]) for k in each] for each in kept] == [
        [("keep", [label], part)] for part in sorted(named)
    ]
    names = {each["relabelings"][0]["regex"]: each["tlsConfig"]["serverName"] for each in endpoints}
    assert names == named
