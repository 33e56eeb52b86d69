"""Rules that promtool accepts, alerts that fire when they should and not otherwise, a runbook behind each."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sight.chart_files import FILES, RUNBOOK_URL, RUNBOOKS, rules
from tests.sight.loopback import needs_prometheus, rendered_objects

CASES = sorted(Path(__file__).parent.glob("*alerts_test.yaml"))
ABSENCE = {"TonnagePlannerGone", "TonnageRouterGone"}
"""The alerts that are about something not being there."""
SECTIONS = ("## What it means", "## Look at", "## Do", "## It was nothing")


def promtool(*arguments: object) -> None:
    run = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@needs_prometheus
def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", *sorted((FILES / "rules").glob("*.yaml")))


@needs_prometheus
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_each_alert_fires_when_it_should_and_not_otherwise(path: Path, tmp_path: Path) -> None:
    """The cases tell labels only; promtool would want every annotation as well, so they are left out here."""
    for file in (FILES / "rules").glob("*.yaml"):
        document = yaml.safe_load(file.read_text())
        for rule in (rule for group in document["groups"] for rule in group["rules"]):
            rule.pop("annotations", None)
        (tmp_path / file.name).write_text(yaml.safe_dump(document))
    cases = yaml.safe_load(path.read_text())
    cases["rule_files"] = [str(tmp_path / Path(name).name) for name in cases["rule_files"]]
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases))
    promtool("test", "rules", tmp_path / "cases.yaml")


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    cases = [case for path in CASES for case in yaml.safe_load(path.read_text())["tests"]]
    checks = [check for case in cases for check in case["alert_rule_test"]]
    fires = {check["alertname"] for check in checks if check["exp_alerts"]}
    rests = {check["alertname"] for check in checks if not check["exp_alerts"]}
    names = {rule["alert"] for rule in rules("alert")}
    assert len(names) == len(rules("alert"))
    assert (fires, rests) == (names, names)


@pytest.mark.parametrize("rule", rules("alert"), ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_and_where_its_runbook_is(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    annotations = rule["annotations"]
    assert annotations.keys() == {"summary", "description", "runbook_url"}
    page = RUNBOOKS / (annotations["runbook_url"].removeprefix(RUNBOOK_URL) + ".md")
    assert page.is_file(), page
    assert rule["alert"] in page.read_text()


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_a_runbook_is_of_an_alert_and_says_what_to_do(page: Path) -> None:
    text = page.read_text()
    if page.stem == "README":
        listed = set(re.findall(r"\]\(([a-z-]+)\.md\)", text))
        assert listed == {other.stem for other in RUNBOOKS.glob("*.md")} - {"README"}
        return
    told = {rule["alert"] for rule in rules("alert") if rule["annotations"]["runbook_url"] == RUNBOOK_URL + page.stem}
    assert told and told == set(re.findall(r"\bTonnage[A-Z][A-Za-z]+\b", text))
    assert [section for section in SECTIONS if section not in text] == []


def test_only_alerts_of_absence_ask_what_is_not_there() -> None:
    asking = {rule["alert"] for rule in rules("alert") if re.search(r"absent|unless", rule["expr"])}
    assert asking == ABSENCE


def test_the_chart_brings_the_rules_with_the_runbooks_where_it_was_told() -> None:
    values = {
        "prometheusRule": {"enabled": True},
        "configMap": {"enabled": True},
        "runbookUrl": "https://wiki.example/r",
    }
    files = {path.name: path.read_text() for path in sorted((FILES / "rules").glob("*.yaml"))}
    moved = {name: yaml.safe_load(text.replace(RUNBOOK_URL, "https://wiki.example/r/")) for name, text in files.items()}
    objects = rendered_objects("rules.yaml", metrics={"interval": "1s", "rules": values})
    (config,) = (one for one in objects if one["kind"] == "ConfigMap")
    assert {name: yaml.safe_load(text) for name, text in config["data"].items()} == moved
    made = [one["spec"] for one in objects if one["kind"] == "PrometheusRule"]
    assert made == list(moved.values())
