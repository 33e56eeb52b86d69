"""Every command the README shows is one the product has: make targets exist, `tonnage` options are known."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tonnage_cli.main import COMMANDS, root

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(?:sh|console|bash)\n(.*?)```", README, flags=re.S)
LINES = [line.strip().removeprefix("$ ") for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]
TONNAGE = [line for line in LINES if line.startswith("tonnage ")]
MAKE = [line for line in LINES if line.startswith("make ")]


def test_the_readme_shows_the_two_commands_first() -> None:
    assert [line for line in LINES if line][:2] == ["make up", "make test"] or MAKE[:2] == [
        line for line in MAKE if line.split("#")[0].strip() in ("make up", "make test")
    ]


@pytest.mark.parametrize("line", MAKE)
def test_a_make_target_of_the_readme_exists(line: str) -> None:
    target = line.split()[1]
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), flags=re.M), target


@pytest.mark.parametrize("line", TONNAGE)
def test_a_tonnage_command_of_the_readme_parses(line: str) -> None:
    words = shlex.split(line.split(" #")[0])[1:]
    assert words[0] in COMMANDS, words[0]
    command = root.get_command(click.Context(root), words[0])
    assert command is not None
    command.make_context("tonnage " + words[0], words[1:], resilient_parsing=False)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_explains_itself(name: str) -> None:
    command = root.get_command(click.Context(root), name)
    assert command is not None
    steps = list(command.commands.values()) if isinstance(command, click.Group) else [command]
    assert any("--json" in step.get_help(click.Context(step, info_name=name)) for step in steps)
    assert all(len(step.help or "") > 30 for step in (command, *steps)), f"{name}: say what it does"


def test_the_command_line_starts_without_importing_services() -> None:
    heavy = {"tonnage_router", "fastapi", "torch", "uvicorn"}
    code = f"import sys, tonnage_cli.main; print([m for m in {sorted(heavy)!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
