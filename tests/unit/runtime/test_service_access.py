"""Bearer tokens between parts: hashed where they are known, read again when they change, asked for everywhere."""

import hashlib
import hmac
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from tonnage_core.errors import BadInputError
from tonnage_runtime import access
from tonnage_runtime.access import KnownTokens, OwnToken, SharedToken
from tonnage_runtime.http_app import build_base_app


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes the hashes of tokens; every look is a fresh one."""
    monkeypatch.setattr(access, "LOOK_S", 0.0)

    def write(*tokens: str, name: str = "known") -> Path:
        file = tmp_path / name
        fresh = tmp_path / f"{name}.new"
        fresh.write_text("# who may\n" + "".join(f"{digest(token)} since March\n" for token in tokens))
        fresh.replace(file)
        return file

    return write


@pytest.fixture
async def client(known: Callable[..., Path]) -> AsyncIterator[httpx.AsyncClient]:
    app = build_base_app("x", CollectorRegistry(), access_file=known("old"), beside=("/peers/",))

    @app.get("/v1/things")
    @app.post("/v1/things")
    @app.get("/peers/chunk")
    async def things() -> dict[str, str]:
        return {"a": "b"}

    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as made:
        yield made


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic old"},
        {"authorization": "old"},
        {"authorization": "Bearer"},
        {"authorization": f"Bearer {digest('old')}"},
        {"authorization": "Bearer \xb2\xff"},
    ],
)
async def test_without_a_known_token_nothing_is_told(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    sent: Any = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    for method, path in (("GET", "/v1/things"), ("POST", "/v1/things"), ("GET", "/docs"), ("GET", "/openapi.json")):
        answer = await client.request(method, path, headers=sent)
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"
        assert "old" not in answer.text


async def test_two_authorization_headers_are_none(client: httpx.AsyncClient) -> None:
    sent = [("authorization", "Bearer old"), ("authorization", "Bearer old")]
    assert (await client.get("/v1/things", headers=sent)).status_code == 401


async def test_health_metrics_and_what_has_its_own_gate_stay_open(client: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/peers/chunk"):
        assert (await client.get(path)).status_code == 200
    for path in ("/healthz/", "/metrics/../v1/things", "//metrics"):
        assert (await client.get(path)).status_code == 401


async def test_a_token_is_rotated_without_a_restart(client: httpx.AsyncClient, known: Callable[..., Path]) -> None:
    async def status(token: str) -> int:
        return (await client.get("/v1/things", headers={"authorization": f"Bearer {token}"})).status_code

    assert [await status("old"), await status("new")] == [200, 401]
    known("old", "new")
    assert [await status("old"), await status("new")] == [200, 200]
    known("new")
    assert [await status("old"), await status("new")] == [401, 200]


async def test_a_file_that_breaks_or_goes_leaves_what_was_known(
    client: httpx.AsyncClient, known: Callable[..., Path]
) -> None:
    file = known("old")
    for damage in (lambda: file.write_text("not a hash\n"), lambda: file.write_text(""), file.unlink):
        damage()
        answer = await client.get("/v1/things", headers={"authorization": "Bearer old"})
        assert answer.status_code == 200


@pytest.mark.parametrize("text", ["", "\n# nobody\n", "abc\n", f"{digest('a')}\nsecret-token\n"])
def test_a_file_that_names_nobody_or_holds_a_token_is_refused_at_the_start(tmp_path: Path, text: str) -> None:
    file = tmp_path / "known"
    file.write_text(text)
    with pytest.raises(BadInputError) as caught:
        KnownTokens(file)
    assert "secret-token" not in str(caught.value)


def test_ones_own_token_is_read_again_and_never_half(known: Callable[..., Path], tmp_path: Path) -> None:
    known()
    file = tmp_path / "own"
    with pytest.raises(BadInputError):
        OwnToken(file)
    file.write_text("first\n")
    own = OwnToken(file)
    assert own.header() == "Bearer first"
    file.write_text("second-token")
    assert own.header() == "Bearer second-token"
    file.write_text("")
    assert own.header() == "Bearer second-token"


def test_every_token_is_compared_in_constant_time_whichever_fits(
    known: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str | bytes] = []
    truly = hmac.compare_digest

    def watched(sent: Any, held: Any) -> bool:
        compared.append(held)
        return truly(sent, held)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    (tmp_path / "shared").write_text("a\nb\nc\n")
    hashes, shared = KnownTokens(known("a", "b", "c")), SharedToken(f"@{tmp_path / 'shared'}")
    for sent in ("a", "c", "z"):
        compared.clear()
        assert hashes.admits(f"Bearer {sent}") is (sent != "z")
        assert compared == [digest(each) for each in "abc"]
        compared.clear()
        assert shared.admits(sent) is (sent != "z")
        assert compared == [b"a", b"b", b"c"]
