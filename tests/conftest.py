"""What every test has: opt-in markers, and in CI no silent skip."""

import asyncio
import os

import pytest

OPT_IN = {"gpu": "TONNAGE_TEST_GPU", "e2e": "TONNAGE_E2E_ENGINES"}
_skipped: list[str] = []


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


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a test that was skipped for want of a tool fails the run."""
    if os.environ.get("CI") and _skipped and not hasattr(session.config, "workerinput") and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which skips failed the run."""
    if os.environ.get("CI") and _skipped:
        terminalreporter.write_line("skipped for want of a tool, which CI must have:")
        for line in _skipped:
            terminalreporter.write_line("  " + line)
