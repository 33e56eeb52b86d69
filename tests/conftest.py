"""What every test has: opt-in markers, in CI no silent skip, and a record of calls to the Kubernetes API."""

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

OPT_IN = {"gpu": "TONNAGE_TEST_GPU", "e2e": "TONNAGE_E2E_ENGINES"}
_skipped: list[str] = []
ROOT = Path(__file__).resolve().parents[1]
API_CALLS = ROOT / "tests" / "golden" / "chart" / "api_calls.json"
"""Every call of each component, as `group/resource[/subresource]` to verbs; tests/chart/test_rbac.py holds the chart to
it. To accept a change: TONNAGE_RECORD_API_CALLS=1 with the files below, in one process."""
CALLERS = {
    "operator": ("tests/unit/operator",),
    "agent": ("tests/conformance/test_profile_store.py", "tests/integration/test_agent_in_cluster.py"),
    "router": ("tests/integration/router/test_router_kubernetes.py",),
}
"""Where a component's own code talks to a mock API server."""
_unused: list[str] = []
_calls: dict[str, set[tuple[str, str]]] = {}
API_PATH = re.compile(
    r"^/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)"
    r"(?:/namespaces/[^/]+(?=/[^/?]))?/(?P<plural>[^/?]+)(?:/(?P<name>[^/?]+)(?:/(?P<sub>[^/?]+))?)?$"
)


def pytest_configure() -> None:
    """No implicit event loop: looptime asks for the current one and would leave a made-up loop unclosed."""
    asyncio.set_event_loop(None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test marked gpu or e2e runs only when its environment variable is set."""
    for item in items:
        for marker, variable in OPT_IN.items():
            if item.get_closest_marker(marker) and not os.environ.get(variable):
                item.add_marker(pytest.mark.skip(reason=f"opt-in: set {variable}"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember each skip that is not an opt-in: on a bare machine a tool may be missing, in CI it may not."""
    if report.skipped and isinstance(report.longrepr, tuple) and "opt-in" not in report.longrepr[2]:
        _skipped.append(f"{report.nodeid}: {report.longrepr[2]}")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the calls that a worker saw."""
    for caller, calls in getattr(node, "workeroutput", {}).get("api_calls", {}).items():
        _calls.setdefault(caller, set()).update((resource, verb) for resource, verb in calls)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a test that was skipped for want of a tool fails the run; so does a right that no call needs, anywhere."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["api_calls"] = {caller: sorted(calls) for caller, calls in _calls.items()}
    elif os.environ.get("TONNAGE_RECORD_API_CALLS"):
        _record()
    elif session.exitstatus == 0 and (unused := _never_called(session.config)):
        _unused.extend(unused)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if os.environ.get("CI") and _skipped and not hasattr(session.config, "workerinput") and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which skips and which calls failed the run."""
    if _unused:
        terminalreporter.write_line(f"in {API_CALLS.name}, but called by no test: take the right away:")
        for line in _unused:
            terminalreporter.write_line("  " + line)
    if os.environ.get("CI") and _skipped:
        terminalreporter.write_line("skipped for want of a tool, which CI must have:")
        for line in _skipped:
            terminalreporter.write_line("  " + line)


def api_call(method: str, path: str, watch: bool, created: bool) -> tuple[tuple[str, str], ...]:
    """(resource, verb) of a request as the API server authorises it; none for discovery. An apply that creates needs
    both rights."""
    found = API_PATH.match(path)
    if found is None:
        return ()
    resource = f"{found['group'] or ''}/{found['plural']}" + (f"/{found['sub']}" if found["sub"] else "")
    reads = "get" if found["name"] else "watch" if watch else "list"
    verb = {"GET": reads, "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method.upper()]
    return ((resource, verb), *(((resource, "create"),) if verb == "patch" and created else ()))


@pytest.fixture(autouse=True)
def _api_calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Note the calls of tests under `CALLERS`; one that is not on record fails the test that made it."""
    where = request.node.nodeid.partition("::")[0]
    caller = next((one for one, places in CALLERS.items() if where.startswith(places)), None)
    if caller is None:
        yield
        return
    seen = _calls.setdefault(caller, set())
    _watch_client(monkeypatch, seen)
    if caller == "operator":
        _watch_kopf(monkeypatch, seen)
    yield
    if not os.environ.get("TONNAGE_RECORD_API_CALLS"):
        recorded = json.loads(API_CALLS.read_text())[caller]
        unknown = sorted((resource, verb) for resource, verb in seen if verb not in recorded.get(resource, ()))
        assert not unknown, f"calls that are not in {API_CALLS.name}, so that no Role allows them: {unknown}"


def _watch_client(monkeypatch: pytest.MonkeyPatch, seen: set[tuple[str, str]]) -> None:
    from tonnage_runtime.kube import KubeClient

    opened: Callable[..., Any] = KubeClient._open

    def open_(self: Any, method: str, path: str, query: Any, *rest: Any, **more: Any) -> Any:
        response, status = None, 0
        try:
            response = opened(self, method, path, query, *rest, **more)
            status = response.status
        finally:
            seen.update(api_call(method, path, query.get("watch") == "true", status == 201))
        return response

    monkeypatch.setattr(KubeClient, "_open", open_)


def _watch_kopf(monkeypatch: pytest.MonkeyPatch, seen: set[tuple[str, str]]) -> None:
    from kopf._cogs.clients import api

    asked: Any = api.request

    async def ask(method: str, url: str, **more: Any) -> Any:
        path, _, query = url.partition("?")
        seen.update(api_call(method, path, "watch=true" in query, False))
        return await asked(method, url, **more)

    monkeypatch.setattr(api, "request", ask)


def _whole(config: pytest.Config, caller: str) -> bool:
    """Whether every test of the caller was asked for."""
    if config.option.keyword or config.option.markexpr or any("::" in arg for arg in config.args):
        return False
    asked = [Path(config.invocation_params.dir, arg).resolve() for arg in config.args]
    return all(any((ROOT / place).is_relative_to(one) for one in asked) for place in CALLERS[caller])


def _never_called(config: pytest.Config) -> list[str]:
    """Calls on record that nobody made, though every test ran."""
    recorded = json.loads(API_CALLS.read_text())
    return [
        f"{caller}: {verb} {resource}"
        for caller, calls in recorded.items()
        if _whole(config, caller)
        for resource, verbs in calls.items()
        for verb in verbs
        if (resource, verb) not in _calls.get(caller, ())
    ]


def _record() -> None:
    made = {
        caller: {resource: sorted(v for r, v in calls if r == resource) for resource in sorted({r for r, _ in calls})}
        for caller, calls in sorted(_calls.items())
    }
    API_CALLS.write_text(json.dumps(made, indent=1) + "\n")
