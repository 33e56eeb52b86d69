"""After a replay with faults through `tonnage up`, every query of every dashboard, rule and alert has data.

Real processes, the chart's rendered scrape configuration and rules, Debian's Prometheus. What needs a card (ceilings,
an XID) comes from the agent's fake driver with a measured profile in its book and a line in its kernel log.
"""

import contextlib
import hashlib
import json
import math
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sight.chart_files import ROOT, dashboard_queries, rules
from tests.sight.loopback import (
    Service,
    ask,
    chart_scrape_config,
    get,
    needs_prometheus,
    on_loopback,
    prometheus,
    rendered,
    running,
    start,
    wait_for,
)
from tests.sight.promql import left_side, selectors, substituted

pytestmark = [needs_prometheus, pytest.mark.slow, pytest.mark.timeout(400)]
OF_OTHERS: dict[str, str] = {}
"""Metrics of a named third-party exporter that may have no data here, each with the exporter's name: there are none."""
MODEL = "meta-llama/Llama-3.1-8B"
GPU = "H200-SXM-141GB"
MEASURED = ROOT / "benchmarks" / "results" / "2026-11-30-h200-probe-full-run1.json"
FAKE_UUID = "GPU-00000000-0000-0000-0000-000000000000"
NO_CLUSTER = """
{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: k, cluster: {server: "http://127.0.0.1:9"}}],
 contexts: [{name: c, context: {cluster: k, user: u}}], users: [{name: u, user: {token: x}}]}
"""
XID = "6,1,1,-;NVRM: Xid (PCI:0000:10:00): 79, pid=1, name=python, GPU has fallen off the bus.\n"


def environment(folder: Path) -> dict[str, str]:
    """What the local fleet's parts are told beside what `tonnage up` tells them."""
    policy = {"gpu": GPU, "model": MODEL, "max_replicas": 4, "usd_per_replica_hour": 3.5, "slo_ttft_ms": 2000}
    values = {
        "PLANNER_POLICY": json.dumps(policy),
        "PLANNER_SCRAPE_INTERVAL_S": "0.5",
        "PLANNER_STALE_AFTER_S": "2",
        "PLANNER_KEDA_PORT": "0",
        "AGENT_DRIVER": "fake",
        "AGENT_INTERVAL_S": "1",
        "AGENT_STATE_DIR": str(folder / "agent"),
        "AGENT_KERNEL_LOG": str(folder / "kmsg"),
        "COLDSTART_QUOTA_BYTES": str(1 << 20),
        "COLDSTART_KEEP_FREE_BYTES": "0",
    }
    return {f"TONNAGE_{name}": value for name, value in values.items()}


def write_measured_profile(folder: Path) -> None:
    """A measured H200 in the agent's book, under the fake driver's uuid."""
    profile = json.loads(MEASURED.read_text())["gpus"][0] | {"uuid": FAKE_UUID}
    verdict = {"status": "OK", "reasons": [], "since": time.time(), "recent": ["OK"], "last_evidence": time.time()}
    record = {"verdict": verdict, "history": {}, "runs": [], "profile": profile}
    folder.mkdir()
    book = {"schema": "tonnage.gpu_book/1", "gpus": {FAKE_UUID: record}}
    (folder / "profiles.json").write_text(json.dumps(book))


def post(url: str, body: Any, **headers: str) -> tuple[int, Any]:
    """Status and document of an answer, errors included."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json", **headers}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")


def complete(router: str, **headers: str) -> int:
    """One short request; its status, or 0 when none came in time."""
    body = {"model": MODEL, "prompt": f"say {time.monotonic()}", "max_tokens": 4}
    with contextlib.suppress(TimeoutError):
        return post(f"{router}/v1/completions", body, **headers)[0]
    return 0


@dataclass(frozen=True)
class Fleet:
    """The running fleet, a second router with tenants in front of it, and the Prometheus that watches."""

    urls: dict[str, Any]
    tenants_router: str
    server: str
    folder: Path
    began: float

    def value(self, query: str) -> float | None:
        """The first value of an instant query."""
        found = ask(self.server, "query", query=query)["result"]
        return float(found[0]["value"][1]) if found else None

    def has_data(self, query: str) -> bool:
        """Some finite value at some time of the run."""
        found = ask(self.server, "query_range", query=query, start=self.began, end=time.time(), step=1)["result"]
        return any(math.isfinite(float(value)) for series in found for _, value in series["values"])


def host(url: str) -> str:
    return url.removeprefix("http://")


def services(urls: dict[str, Any], tenants_admin: str, operator: str) -> list[Service]:
    parts = {"router": "admin", "planner": "planner", "agent": "agent", "coldstart": "coldstart"}
    found = [Service(f"tonnage-{part}", host(urls[name])) for part, name in parts.items()]
    found += [Service("tonnage-engines", host(url)) for url in urls["engines"]]
    return [*found, Service("tonnage-router", tenants_admin), Service("tonnage-operator", operator)]


def start_tenants_router(stack: contextlib.ExitStack, folder: Path, urls: dict[str, Any]) -> tuple[str, str]:
    """A second replica of the router, with tenants; its address and its admin address."""
    from tonnage_runtime.ports import free_port

    keys = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("alpha", "beta")}
    rows: list[dict[str, Any]] = [{"name": name, "key_sha256": key} for name, key in keys.items()]
    rows[1] |= {"concurrent_tokens": 1}
    (folder / "tenants.yaml").write_text(json.dumps({"tenants": rows}))
    port = free_port()
    admin = start(
        stack,
        "router",
        "tonnage_router.main",
        folder,
        metrics_port="ADMIN_PORT",
        PORT=str(port),
        TENANTS_FILE=str(folder / "tenants.yaml"),
        ENDPOINTS=json.dumps([{"url": url, "model": MODEL} for url in urls["engines"]]),
    )
    return f"http://127.0.0.1:{port}", admin


def start_operator(stack: contextlib.ExitStack, folder: Path) -> str:
    """An operator that cannot reach its cluster: it says so in its metrics, and acts on nothing."""
    (folder / "kubeconfig").write_text(NO_CLUSTER)
    return start(stack, "operator", "tonnage_operator.main", folder, KUBECONFIG=str(folder / "kubeconfig"))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("sight")
    write_measured_profile(folder / "agent")
    (folder / "kmsg").write_text("")
    arguments = ["up", "--engines", "2", "--kv-events", "--port-base", "0", "--urls-file", "urls.json", "--speed", "10"]
    arguments += ["--replay", str(ROOT / "samples" / "mooncake_sample.jsonl"), "--limit", "60", "--max-input", "3000"]
    command = [sys.executable, "-c", "from tonnage_cli.main import main; main()", *arguments]
    with contextlib.ExitStack() as stack:
        up = stack.enter_context(running(command, environment(folder), folder / "up.log", cwd=folder))
        wait_for("the fleet's URLs", lambda: (folder / "urls.json").exists() or up.poll() is not None, 180)
        assert up.poll() is None, (folder / "up.log").read_text()
        urls = json.loads((folder / "urls.json").read_text())
        tenants_router, tenants_admin = start_tenants_router(stack, folder, urls)
        operator = start_operator(stack, folder)
        asked = chart_scrape_config(operator={"enabled": True})
        config = on_loopback(asked, services(urls, tenants_admin, operator), cluster="here", namespace="fleet")
        for name, text in rendered("rules.yaml").items():
            (folder / name).write_text(text)
        config |= {
            "rule_files": [str(folder / name) for name in rendered("rules.yaml")],
            "global": {"evaluation_interval": "1s"},
        }
        began = time.time()
        server = stack.enter_context(prometheus(config, folder))
        yield Fleet(urls, tenants_router, server, folder, began)


def suffer(fleet: Fleet) -> None:
    """Faults of every kind, while the trace replays; each lasts until it shows."""
    router, (first, second) = fleet.urls["router"], fleet.urls["engines"]

    def shows(query: str) -> bool:
        complete(router)
        return (fleet.value(query) or 0) > 0

    wait_for("the replay shows", lambda: shows("sum(tonnage_router_requests_total)"))
    post(f"{first}/admin/fault", {"kind": "error", "status": 500, "for_s": 20})
    wait_for("failed attempts show", lambda: shows("sum(tonnage_router_endpoint_failures_total)"))
    post(f"{second}/admin/fault", {"kind": "slow", "factor": 20, "for_s": 2})
    for engine in (first, second):
        post(f"{engine}/admin/fault", {"kind": "metrics_error", "for_s": 60})
    wait_for("the planner is blind", lambda: shows("max(tonnage:planner_blind:ratio_rate5m)"))
    for engine in (first, second):
        clear(engine)
    with (fleet.folder / "kmsg").open("a") as log:
        log.write(XID)
    post(f"{first}/admin/fault", {"kind": "hang", "for_s": 60})
    wait_for("the engine that hangs shows", lambda: shows("sum(1 - tonnage_router_endpoint_up)"))
    clear(first)
    with contextlib.suppress(OSError):
        post(f"{first}/admin/fault", {"kind": "crash"})


def clear(engine: str) -> None:
    """End every fault of an engine."""
    urllib.request.urlopen(urllib.request.Request(f"{engine}/admin/fault", method="DELETE"), timeout=30).close()


def use(fleet: Fleet) -> None:
    """Everything else that there is a panel for."""
    bad = post(f"{fleet.urls['router']}/v1/completions", {"model": "no-such-model", "prompt": "x"})
    assert bad[0] == 404
    wait_for("an answer for alpha", lambda: complete(fleet.tenants_router, authorization="Bearer alpha") == 200)
    assert complete(fleet.tenants_router, authorization="Bearer beta") in (400, 429)
    point = (
        f"id,model,engine,engine_version,gpu,isl,osl,concurrency,metric,value\n1,{MODEL},vllm,0.32.0,L40S,512,128,8,"
    )
    for row in ("tpot_ms,20\n", "ttft_ms,300\n", "output_tok_s,350\n"):
        request = urllib.request.Request(f"{fleet.urls['planner']}/v1/bench-points", (point + row).encode())
        urllib.request.urlopen(request, timeout=30).close()
    weights = fleet.folder / "weights"
    weights.mkdir()
    (weights / "config.json").write_text('{"model_type": "test"}')
    (weights / "tokenizer.json").write_text("{}")
    (weights / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert post(f"{fleet.urls['coldstart']}/v1/stage", {"uri": str(weights)})[0] < 300
    wait_for("the staged snapshot shows", lambda: (fleet.value("sum(tonnage_coldstart_cache_entries)") or 0) > 0)
    assert post(f"{fleet.urls['coldstart']}/v1/cache/scrub", {})[0] == 200
    began = time.time()
    spans = [{"phase": "provision", "start_s": began - 9, "end_s": began - 7}]
    spans.append({"phase": "init", "start_s": began - 7, "end_s": began})
    started = {"schema": "tonnage.start/1", "name": "llama-0", "spans": spans}
    assert post(f"{fleet.urls['coldstart']}/v1/starts", started)[0] == 201


def asked() -> Iterator[tuple[str, str]]:
    """Where each query stands, and the query to be asked."""
    yield from ((where, substituted(query)) for where, query in dashboard_queries())
    yield from ((rule["record"], rule["record"]) for rule in rules("record"))
    for rule in rules("alert"):
        yield rule["alert"], left_side(rule["expr"])
        yield from ((f"{rule['alert']}: {one}", one) for one in selectors(rule["expr"]))


def test_every_query_of_every_dashboard_rule_and_alert_has_data(fleet: Fleet) -> None:
    suffer(fleet)
    use(fleet)
    left = dict(asked())
    assert len(left) > 150
    assert not fleet.has_data("sum(tonnage_router_requets_total)"), "a wrong name must be seen to have no data"
    assert not fleet.has_data('sum(tonnage_gpu_verdict{status="BROKEN"})'), "and so must a wrong label"

    def none_left() -> bool:
        complete(fleet.urls["router"])
        for where in [where for where, query in left.items() if fleet.has_data(query)]:
            del left[where]
        return not left

    with contextlib.suppress(AssertionError):
        wait_for("data for every query", none_left, within_s=60)
    assert {where: query for where, query in left.items() if not set(OF_OTHERS) & set(selectors(query))} == {}


def test_no_rule_fails_to_be_evaluated(fleet: Fleet) -> None:
    groups = ask(fleet.server, "rules")["groups"]
    assert {
        rule["name"]: rule["lastError"] for group in groups for rule in group["rules"] if rule.get("lastError")
    } == {}
    assert len(groups) == 7


def test_the_fleets_own_configuration_is_for_the_same_targets_and_promtool_accepts_it(fleet: Fleet) -> None:
    path = fleet.folder / ".tonnage" / "prometheus.yml"
    run = subprocess.run(["promtool", "check", "config", path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    jobs = {
        job["job_name"]: job["static_configs"][0]["targets"]
        for job in yaml.safe_load(path.read_text())["scrape_configs"]
    }
    told = services(fleet.urls, "", "")
    ours = {service.job for service in told} - {"tonnage-operator"}
    assert {job: jobs[job] for job in ours} == {
        job: [service.metrics for service in told if service.job == job and service.metrics] for job in ours
    }
    pages = [f"http://{address}/metrics" for addresses in jobs.values() for address in addresses]
    wait_for("every page, that of the engine which crashed too", lambda: all(b"# HELP" in get(page) for page in pages))
