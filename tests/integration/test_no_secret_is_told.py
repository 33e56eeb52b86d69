"""A secret prompt and secret keys go through every part; none of them is in a log, a metric, an explanation or an
error."""

import asyncio
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tonnage_runtime.ports import free_ports

PROMPT, KEY, WRONG, ENGINE_KEY, SOURCE, PASSWORD = (
    f"CANARY-{name}-7f3a" for name in ("prompt", "key", "wrongkey", "enginekey", "sourcetoken", "password")
)
CANARIES = (PROMPT, KEY, WRONG, ENGINE_KEY, SOURCE, PASSWORD)
MODEL = "meta-llama/Llama-3.1-8B"


def ask(url: str, body: Any = None, method: str | None = None, **headers: str) -> tuple[int, str]:
    sent = body.encode() if isinstance(body, str) else json.dumps(body).encode() if body is not None else None
    told = {"content-type": "application/json", **headers}
    request = urllib.request.Request(url, data=sent, headers=told, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, str(answer.headers) + answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, str(error.headers) + error.read().decode()


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """An engine, a router, a planner and a cold-start service, as chatty as they can be; their URLs and logs."""
    folder = tmp_path_factory.mktemp("parts")
    engine, dead, port, admin, planner, coldstart = free_ports(6)
    tenants = [{"name": "a", "key_sha256": hashlib.sha256(KEY.encode()).hexdigest(), "requests_per_s": 1000}]
    (folder / "tenants.yaml").write_text(yaml.safe_dump({"tenants": tenants}))
    endpoints = [
        {"url": f"http://127.0.0.1:{engine}", "model": MODEL, "api_key": ENGINE_KEY},
        {"url": f"http://127.0.0.1:{dead}", "model": MODEL, "api_key": ENGINE_KEY},
    ]
    told: dict[str, dict[str, Any]] = {
        "sim": {"PORT": engine, "MODEL": MODEL, "GPU": "H200-SXM-141GB", "TIME_SCALE": 50, "LOG_LEVEL": "DEBUG"},
        "router": {
            "PORT": port, "ADMIN_PORT": admin, "ENDPOINTS": json.dumps(endpoints), "ACCESS_LOG": "all",
            "TENANTS_FILE": folder / "tenants.yaml", "LOG_LEVEL": "DEBUG",
        },
        "planner": {"PORT": planner, "ENDPOINTS": json.dumps(endpoints), "LOG_LEVEL": "DEBUG"},
        "coldstart": {
            "PORT": coldstart, "CACHE_DIR": folder / "cache", "HTTP_TOKEN": SOURCE, "ATTEMPTS": 1, "LOG_LEVEL": "DEBUG",
        },
    }  # fmt: skip
    running = []
    for name, settings in told.items():
        env = {**os.environ, **{f"TONNAGE_{name.upper()}_{key}": str(value) for key, value in settings.items()}}
        with (folder / f"{name}.log").open("wb") as log:
            command = [sys.executable, "-m", f"tonnage_{name}.main"]
            running.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
    urls = {"sim": engine, "router": port, "admin": admin, "planner": planner, "coldstart": coldstart}
    found: dict[str, Any] = {name: f"http://127.0.0.1:{number}" for name, number in urls.items()}
    try:
        for url in (f"{found['admin']}/readyz", f"{found['planner']}/healthz", f"{found['coldstart']}/readyz"):
            _until_ok(url)
        yield {**found, "folder": folder}
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(20)


def _until_ok(url: str) -> None:
    deadline = time.monotonic() + 90
    while True:
        with contextlib.suppress(OSError):
            if ask(url)[0] == 200:
                return
        assert time.monotonic() < deadline, f"{url} did not become ready"
        time.sleep(0.1)


async def _cut_off(port: int) -> None:
    """Half a request with secrets in head and body, and no more."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"POST /v1/completions HTTP/1.1\r\nauthorization: Bearer {KEY}\r\ncontent-length: 900\r\n\r\n".encode()
    )
    writer.write(PROMPT.encode())
    await writer.drain()
    writer.transport.abort()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_secret_is_in_a_log_a_metric_an_explanation_or_an_error(parts: dict[str, Any]) -> None:
    router, bearer = parts["router"], {"authorization": f"Bearer {KEY}", "x-tonnage-explain": "1"}
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2}
    messages = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2, "user": PROMPT}
    answers = [
        ask(f"{router}/v1/completions", body, **bearer),
        ask(f"{router}/v1/chat/completions", messages | {"stream": True}, **bearer),
        ask(f"{router}/v1/completions", body, authorization=f"Bearer {WRONG}"),
        ask(f"{router}/v1/completions", body, authorization=f"Basic {WRONG}"),
        ask(f"{router}/v1/completions", json.dumps(body)[:-2], **bearer),
        ask(f"{router}/v1/completions", body | {"max_tokens": PROMPT}, **bearer),
        ask(f"{router}/v1/completions", body | {"cache_salt": PROMPT, "n": "x"}, **bearer),
    ]
    asyncio.run(_cut_off(int(router.rpartition(":")[2])))
    assert answers[0][0] == answers[1][0] == 200
    staged = f"http://user:{PASSWORD}@127.0.0.1:9/model?X-Amz-Signature={PASSWORD}"
    answers.append(ask(f"{parts['coldstart']}/v1/stage", {"uri": staged}))
    answers.append(ask(f"{parts['coldstart']}/v1/stage", {"uri": parts["sim"] + "/model"}))
    _until_done(parts["coldstart"])
    time.sleep(1.0)  # the access log is written twice a second; too early would hide a leak, never make one
    pages = {f"answer {number}": text for number, (_, text) in enumerate(answers)}
    for name, paths in {
        "admin": ("/metrics", "/admin/endpoints", "/admin/decisions?limit=100", "/admin/queue", "/admin/sharing"),
        "planner": ("/metrics", "/v1/endpoints", "/v1/targets", f"/v1/explain/{MODEL}"),
        "coldstart": ("/metrics", "/v1/stage", "/v1/cache"),
        "sim": ("/metrics",),
    }.items():
        pages |= {f"{name} {path}": ask(parts[name] + path)[1] for path in paths}
    pages |= {file.name: file.read_text(errors="replace") for file in parts["folder"].glob("*.log")}
    assert "chat/completions" in pages["router.log"]
    told = {f"{canary} in {name}" for name, text in pages.items() for canary in CANARIES if canary in text}
    # The engine's refusal repeats what its caller wrote, to that caller; the router passes it on.
    assert told - {f"{PROMPT} in answer 5"} == set()


def _until_done(url: str) -> None:
    deadline = time.monotonic() + 60
    while any(job["state"] in ("waiting", "running") for job in json.loads(_body(url))["jobs"]):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _body(url: str) -> str:
    with urllib.request.urlopen(f"{url}/v1/stage", timeout=30) as answer:
        text: str = answer.read().decode()
    return text
