"""The documents: links lead somewhere, commands parse, metrics and alerts that they name exist."""

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml
from helm_python.chart import Chart

from tests.sight.chart_files import ROOT
from tests.sight.loopback import CHART
from tests.sight.promql import names
from tests.sight.test_dashboards import exported
from tonnage_cli.main import COMMANDS, root

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("README.md")])
GUIDES = [
    ROOT / "docs" / f"{name}.md" for name in ("quickstart", "architecture", "nouns", "troubleshooting", "dashboards")
]
ANSWERED = [*GUIDES, *sorted((ROOT / "docs" / "runbooks").glob("*.md"))]


def identity(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=identity)
def test_links_lead_somewhere(page: Path) -> None:
    found = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", page.read_text())
    assert [link for link in found if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", ANSWERED, ids=identity)
def test_named_metrics_exist(page: Path) -> None:
    """A histogram may be named without its suffix; `vllm:0.19.0` is an engine, not a metric."""
    known = exported() | {name.removesuffix("_bucket") for name in exported()}
    assert {name for name in names(page.read_text()) if not re.match(r"vllm:\d", name)} - known == set()


@pytest.mark.parametrize("page", GUIDES, ids=identity)
def test_shown_commands_are_commands(page: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), flags=re.S)
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    for line in lines:
        if line.startswith("make "):
            assert re.search(rf"^{re.escape(line.split()[1])}:", (ROOT / "Makefile").read_text(), flags=re.M), line
        if line.startswith("tonnage "):
            words = shlex.split(line.split(" #")[0])[1:]
            assert words[0] in COMMANDS, line
            command = root.get_command(click.Context(root), words[0])
            assert command is not None
            command.make_context("tonnage " + words[0], words[1:], resilient_parsing=False)


@pytest.mark.parametrize("page", GUIDES, ids=identity)
def test_shown_values_are_values_of_the_chart(page: Path) -> None:
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), flags=re.S):
        with Chart.load(CHART) as chart:
            assert chart.render(yaml.safe_load(block), name="demo", namespace="tonnage")
