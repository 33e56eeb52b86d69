"""Installs each image target from its own instruction into a fresh environment, starts it and asks `/readyz`.

    python docker/check_targets.py [TARGET ...]      (default: every service target; agent-cuda only when it is named)

Needs a package index. Prints one JSON line a target: seconds, packages, megabytes, and what `/readyz` answered.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docker" / "Dockerfile").read_text()
NO_CLUSTER = """{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: k, cluster: {server: "http://127.0.0.1:9"}}],
 contexts: [{name: c, context: {cluster: k, user: u}}], users: [{name: u, user: {token: x}}]}"""
EXTRA = {
    "agent": {"DRIVER": "fake"},
    "agent-cuda": {"DRIVER": "fake"},
    "coldstart": {"CACHE_DIR": "{tmp}/cache"},
    "operator": {"KUBECONFIG": "{tmp}/kubeconfig"},
    "bench": {"DATABASE": "{tmp}/bench.sqlite", "TOKEN": "t"},
}


def stage(name: str) -> str:
    """The instructions of one stage."""
    start = re.search(rf"^FROM \S+ AS {re.escape(name)}$", TEXT, re.M)
    if start is None:
        raise SystemExit(f"docker/Dockerfile has no target {name}")
    return TEXT[start.end() :].split("\nFROM ", 1)[0]


def services() -> list[str]:
    """Targets that listen, but for the one with torch."""
    named = re.findall(r"^FROM runtime AS (\S+)$", TEXT, re.M)
    return [name for name in named if "HEALTHCHECK" in stage(name) and name != "agent-cuda"]


def installed(target: str, folder: Path) -> Path:
    """The python of a fresh environment, filled by the target's own RUN line."""
    line = re.search(r"^RUN (pip .*)$", stage(f"build-{target}"), re.M)
    assert line is not None
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    words = line[1].replace("/opt/tonnage/bin/python", str(python)).split()
    command = [sys.executable, "-m", *words[:1], "--quiet", *[word.strip('"') for word in words[1:]]]
    subprocess.run(command, cwd=ROOT, check=True)
    return python


def asked(url: str, process: "subprocess.Popen[bytes]", within_s: float) -> tuple[int, str]:
    """Status and body of the first answer; (0, why) when there is none."""
    ends, why = time.monotonic() + within_s, "no answer in time"
    while time.monotonic() < ends:
        if process.poll() is not None:
            return 0, f"the process ended with {process.returncode}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            why = str(error)
            time.sleep(0.2)
    return 0, why


def checked(target: str) -> dict[str, Any]:
    """What became of one target."""
    folder = Path(tempfile.mkdtemp(prefix=f"tonnage-{target}-"))
    began = time.monotonic()
    try:
        python = installed(target, folder / "venv")
        took = time.monotonic() - began
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        (folder / "kubeconfig").write_text(NO_CLUSTER)
        prefix = f"TONNAGE_{target.removesuffix('-cuda').upper()}_"
        own = {"HOST": "127.0.0.1", "PORT": "0", "ADMIN_PORT" if target == "router" else "PORT": str(port)}
        own |= {name: value.format(tmp=folder) for name, value in EXTRA.get(target, {}).items()}
        environ = {"PATH": os.environ["PATH"], "HOME": str(folder)} | {prefix + n: v for n, v in own.items()}
        entry = re.search(r"^ENTRYPOINT (\[.*\])$", stage(target), re.M)
        assert entry is not None
        with subprocess.Popen([python, *json.loads(entry[1])[1:]], env=environ, cwd=folder) as process:
            status, body = asked(f"http://127.0.0.1:{port}/readyz", process, 120)
            process.terminate()
            ended = process.wait(60)
        lib = next((folder / "venv" / "lib").glob("python*/site-packages"))
        size = sum(path.stat().st_size for path in lib.rglob("*") if path.is_file())
        packages = len(list(lib.glob("*.dist-info")))
        return {
            "target": target,
            "install_s": round(took, 1),
            "packages": packages,
            "site_packages_mb": round(size / 1e6, 1),
            "readyz": status,
            "says": body[:200],
            "exit": ended,
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(targets: list[str]) -> int:
    """0 when every target answered and ended cleanly."""
    failed = 0
    for target in targets or services():
        found = checked(target)
        failed += found["readyz"] not in (200, 503) or found["exit"] != 0
        print(json.dumps(found), flush=True)  # noqa: T201 - the report
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
