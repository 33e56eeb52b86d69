"""Writes a chart's README from the `# --` comments of its values: `python deploy/helm/chart_readme.py CHART_FOLDER`.

Every value that is not a mapping, and every mapping with a comment of its own, becomes one row. A value without a
comment is an error: nothing an operator can set is left unexplained.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

HEAD = """# {name}

{description}

Chart {version}, application {app_version}, Kubernetes {kube}.

{about}
## Values

| value | type | default | meaning |
|---|---|---|---|
"""


def comment_above(lines: list[str], line: int) -> str | None:
    """The `# --` comment that ends on the line above `line` (0-based), in one line; None when there is none."""
    found: list[str] = []
    at = line - 1
    while at >= 0 and lines[at].strip().startswith("#"):
        text = lines[at].strip().removeprefix("#").strip()
        if text.startswith("--"):
            return " ".join([text.removeprefix("--").strip(), *found])
        found.insert(0, text)
        at -= 1
    return None


def rows(node: yaml.MappingNode, lines: list[str], path: str = "") -> Iterator[tuple[str, yaml.Node, str]]:
    """(dotted name, value node, meaning) of every documented value below `node`; ValueError for one without."""
    for key, value in node.value:
        name = f"{path}{key.value}"
        meaning = comment_above(lines, key.start_mark.line)
        nested = isinstance(value, yaml.MappingNode) and value.value
        if meaning is not None:
            yield name, value, meaning
        elif nested:
            yield from rows(value, lines, f"{name}.")
        else:
            raise ValueError(f"values.yaml line {key.start_mark.line + 1}: {name} has no `# --` comment")


def default_of(node: yaml.Node) -> tuple[str, str]:
    """Type and default of a value node, as table cells."""
    value = yaml.safe_load(yaml.serialize(node))
    kind = {dict: "object", list: "list", str: "string", bool: "bool", int: "int", float: "number"}[type(value)]
    return kind, f"`{json.dumps(value)}`"


def readme(chart: Path) -> str:
    """The README of the chart in folder `chart`."""
    about = (chart / "files" / "about.md").read_text()
    facts = yaml.safe_load((chart / "Chart.yaml").read_text())
    text = (chart / "values.yaml").read_text()
    head = HEAD.format(
        name=facts["name"],
        description=facts["description"],
        version=facts["version"],
        app_version=facts["appVersion"],
        kube=facts["kubeVersion"].removesuffix("-0"),
        about=about,
    )
    table = []
    values = yaml.compose(text)
    if not isinstance(values, yaml.MappingNode):
        raise ValueError("values.yaml: a mapping is expected")
    for name, node, meaning in rows(values, text.splitlines()):
        kind, default = default_of(node)
        cell = meaning.replace("|", "\\|")
        table.append(f"| `{name}` | {kind} | {default} | {cell} |\n")
    return head + "".join(table)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "README.md").write_text(readme(folder))
